"""Programs that consume the benchmark's topic, each with another library; `benchmarks.kafka` runs them.

Each is started as `python -m benchmarks.kafka_programs.NAME JSON`, where the JSON is a `Task`. The programs of other
libraries run in an environment of their own (`environment.py`) and import nothing of actorproc.
"""
