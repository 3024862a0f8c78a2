"""A job as one archive or folder that another machine goes on with.

job, run, split --> gather (pack) --> Content, ... --> write (archive) --> NAME.tar
                    '- portable (portable): paths from one root   '- environment: versions, wheel, containers
NAME.tar --> read (archive): names, sizes, checksums --> a folder --> bind (unpack): where data and run are now
pack.json, the machine at hand --> differences (differing)
"""
