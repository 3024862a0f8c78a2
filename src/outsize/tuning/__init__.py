"""Which of many jobs is best: trials of one job, each a training in a process and a run of its own.

space    what may vary --> values of a trial --> its job
study    Optuna's study, in its journal (journal) or a database, which may not answer (patience)
trial    one training: watched, ended early, its line where it fails
work     trials one after the other, by several workers; tidy keeps the best one's weights only
outcome  rows of trials.json, what mattered, best.toml
"""
