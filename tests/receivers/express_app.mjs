// A receiver of jobs as somebody would write it with Express: express.json() for the body, a library for the signature.
//
// express_app.mjs PORT SECRET. Prints a line of JSON for each job that it took.
import express from 'express'
import { Webhook } from 'standardwebhooks'

const [port, secret] = process.argv.slice(2)
const webhook = new Webhook(secret)
const app = express()

// The signature is of the bytes as they came; express.json() hands them over beside what it makes of them.
app.use(express.json({ verify: (request, _, bytes) => { request.bytes = bytes } }))

app.post('/hook', (request, response) => {
  if (request.body === undefined) return response.status(415).end()
  webhook.verify(request.bytes, request.headers) // throws where it is not genuine
  console.log(JSON.stringify({ job: request.body, head: request.headers }))
  response.status(204).end()
})

app.listen(Number(port), '127.0.0.1')
