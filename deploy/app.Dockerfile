# Your handler on top of the image of actorproc. The command of compose or Kubernetes names it: app:Delays.
#   docker build -f deploy/app.Dockerfile -t delays deploy
FROM actorproc:0.1.0
COPY app.py /app/app.py
