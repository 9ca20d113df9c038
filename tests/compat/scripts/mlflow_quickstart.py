import mlflow

mlflow.set_experiment("MLflow Quickstart")

params = {"solver": "lbfgs", "max_iter": 1000, "random_state": 8888}

with mlflow.start_run() as run:
    mlflow.log_params(params)
    mlflow.log_metric("accuracy", 0.94)
    for epoch in range(5):
        mlflow.log_metric("loss", 1 / (epoch + 1), step=epoch)
    mlflow.set_tag("Training Info", "Basic LR model for iris data")
    with open("notes.txt", "w") as file:
        file.write("hello")
    mlflow.log_artifact("notes.txt")

print(run.info.status, mlflow.active_run(), mlflow.last_active_run().info.status)
