import { createHash, randomBytes } from 'node:crypto';
import type { Duplex } from 'node:stream';
import { Receiver, Sender } from 'ws';
import { CodedError } from '../../base/index.ts';

/** RFC 6455, 1.3. */
const ACCEPT_SUFFIX = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
/** The kubelet writes at most 32 KiB at once (remotecommand). */
const MESSAGE_MAX = 16 << 20;
/** Pieces of one message, which cost extra memory. Servers send messages whole. Our choice. */
const PIECES_MAX = 4096;
/** Pings get no answer if this many bytes are unsent: the node may be hostile. Our choice. */
const UNSENT_MAX = 64 << 10;
/** How long the close frame may take. Our choice. */
const LEAVING_MS = 1000;
const CLOSE_NORMAL = 1000;

export interface Handshake {
  readonly headers: Readonly<Record<string, string>>;
  /** The expected value of `sec-websocket-accept` in the answer. */
  readonly accept: string;
}

/** Headers that request one of these protocols. Each handshake has a new key. */
export function handshakeFor(protocols: readonly string[]): Handshake {
  const key = randomBytes(16).toString('base64');
  return {
    accept: createHash('sha1')
      .update(key + ACCEPT_SUFFIX)
      .digest('base64'),
    headers: {
      connection: 'Upgrade',
      upgrade: 'websocket',
      'sec-websocket-version': '13',
      'sec-websocket-key': key,
      'sec-websocket-protocol': protocols.join(','),
    },
  };
}

/**
 * Yields the messages of an upgraded connection until the server ends it, and answers its pings.
 * Leaving the loop closes the connection. Throws `KUBE_UNAVAILABLE` if the connection breaks or
 * speaks no WebSocket.
 */
export async function* messagesOf(socket: Duplex, head: Buffer): AsyncGenerator<Buffer> {
  const limits = { maxPayload: MESSAGE_MAX, maxFragments: PIECES_MAX };
  const receiver = new Receiver({ ...limits, skipUTF8Validation: true });
  const sender = new Sender(socket);
  const messages: Buffer[] = [];
  let isOver = false;
  receiver.on('message', (message: Buffer) => messages.push(message));
  receiver.on('conclude', () => (isOver = true));
  receiver.on('ping', (data: Buffer) => {
    if (socket.writableLength < UNSENT_MAX) sender.pong(data, true);
  });
  // The callback of each write gets the error as well.
  receiver.on('error', () => undefined);
  const read = (bytes: Buffer): Promise<void> =>
    new Promise((resolve, reject) =>
      receiver.write(bytes, (error) => {
        if (error) reject(error);
        else resolve();
      }),
    );
  try {
    const parts = socket[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
    for (let bytes = head; ;) {
      // Messages received before a broken frame count.
      const failed = await read(bytes).catch((error: unknown) => ({ error }));
      yield* messages.splice(0);
      if (failed) throw failed.error;
      if (isOver) return;
      const next = await parts.next();
      if (next.done === true) throw broken('the connection ended in between');
      bytes = next.value;
    }
  } catch (cause) {
    if (cause instanceof CodedError) throw cause;
    throw broken(cause instanceof Error ? cause.message : String(cause), cause);
  } finally {
    // Ignore further data, and errors because the other side closed first.
    socket.on('error', () => undefined);
    if (!socket.writable) socket.destroy();
    else {
      // The other side may have stopped reading.
      const late = setTimeout(() => void socket.destroy(), LEAVING_MS);
      socket.on('close', () => {
        clearTimeout(late);
      });
      sender.close(CLOSE_NORMAL, undefined, true);
      socket.end(() => void socket.destroy());
    }
  }
}

const broken = (why: string, cause?: unknown): CodedError =>
  new CodedError('KUBE_UNAVAILABLE', `the stream from the API server broke: ${why}`, {
    retry: 'backoff',
    cause,
  });
