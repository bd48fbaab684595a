"""A receiver of jobs as somebody would write it with FastAPI: a model for the body, a library for the signature.

fastapi_app.py PORT SECRET. Prints a line of JSON for each job that it took.
"""
import json
import sys

import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from standardwebhooks import Webhook

app = FastAPI()
webhook = Webhook(sys.argv[2])


class Mail(BaseModel):
    to: str
    n: int


@app.post("/hook")
async def hook(mail: Mail, request: Request) -> Response:
    webhook.verify(await request.body(), dict(request.headers))  # raises where it is not genuine
    print(json.dumps({"job": mail.model_dump(), "head": dict(request.headers)}), flush=True)
    return Response(status_code=204)


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
