#!/bin/bash
# A Slurm of one node on loopback, as root: one_node.sh start|stop FOLDER. Its slurm.conf is FOLDER/slurm.conf.
set -eu
what=$1 folder=$2 host=$(hostname -s)

stop() {
    for name in slurmd slurmctld munged; do
        [ -s "$folder/$name.pid" ] || continue
        pid=$(cat "$folder/$name.pid")
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 50); do  # slurmd waits for steps that are ending
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
}

if [ "$what" = stop ]; then
    stop
    exit 0
fi

mkdir -p "$folder/state" "$folder/spool"
chmod 700 "$folder"
dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 status=none
chmod 600 "$folder/munge.key"
cat >"$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=1
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$folder/slurm.conf
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
slurmctld -f "$SLURM_CONF"
slurmd -N "$host" -f "$SLURM_CONF"
for _ in $(seq 100); do
    sinfo --noheader --format=%T 2>/dev/null | grep -q idle && exit 0
    sleep 0.2
done
tail -n 5 "$folder"/*.log >&2
stop
exit 1
