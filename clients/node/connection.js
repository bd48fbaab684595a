// A connection to Redis that is made when it is needed, and made anew when it was lost.
import { createClient, ErrorReply, RESP_TYPES } from 'redis';
import { Refused, textOf, Unknown } from './errors.js';

export class Connection {
  #url;
  #made; // the promise of a client: who comes while it is being made waits for the same one

  constructor(url) {
    this.#url = url;
  }

  // Call once. Throws Refused where Redis did nothing, and Unknown where the connection was lost: it may have happened.
  async call(args) {
    let open;
    try {
      open = await this.#open();
    } catch (why) {
      throw new Refused(why);
    }
    open.calls += 1;
    open.client.ref();
    try {
      return await open.client.sendCommand(args, { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } }); // a job is bytes, so replies are too
    } catch (why) {
      if (why instanceof TypeError) throw why; // nothing that can be sent
      if (why.message?.startsWith('READONLY')) this.close(); // after a failover the address may lead elsewhere
      if (why instanceof ErrorReply) throw new Refused(why);
      throw new Unknown(`cannot tell whether ${args[0]} ${args[1]} happened: ${textOf(why)}`, { cause: why });
    } finally {
      open.calls -= 1;
      if (open.calls === 0) open.client.unref(); // nobody waits: it does not keep the process
    }
  }

  async #open() {
    for (;;) {
      const made = (this.#made ??= connect(this.#url));
      const open = await made.catch((why) => {
        if (this.#made === made) this.#made = undefined;
        throw why;
      });
      if (open.client.isReady) return open;
      if (this.#made === made) this.#made = undefined; // it was lost, or closed meanwhile
    }
  }

  // Let go of it: after the answers that are under way, or at once.
  async close(atOnce = false) {
    const made = this.#made;
    this.#made = undefined;
    const open = await made?.catch(() => undefined);
    if (!open?.client.isOpen) return;
    if (atOnce) open.client.destroy();
    else await open.client.close();
  }
}

async function connect(url) {
  const client = createClient({ url, RESP: 2, socket: { reconnectStrategy: false } });
  client.on('error', () => {}); // the call that meets it throws
  await client.connect();
  return { client, calls: 0 };
}
