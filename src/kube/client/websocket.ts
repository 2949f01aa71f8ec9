import { createHash, randomBytes } from 'node:crypto';
import type { Duplex } from 'node:stream';
import { CodedError } from '../../base/index.ts';

/** RFC 6455, as much as a client needs that reads channels: binary and text messages, pings, the end. */

/** RFC 6455, 1.3. */
const ACCEPT_SUFFIX = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
const OPCODE_CONTINUED = 0;
const OPCODE_TEXT = 1;
const OPCODE_BINARY = 2;
const OPCODE_CLOSE = 8;
const OPCODE_PING = 9;
const OPCODE_PONG = 10;
/** Servers write no more than 32 KiB at once (kubelet: remotecommand); what claims more is no such server. */
const FRAME_MAX = 16 << 20;
/** Pieces of one message: each costs more than its bytes. Servers send messages whole. Our choice. */
const PIECES_MAX = 4096;
/** Pings are not answered while so many answers are unread: a node may lie, and pings are its to send. Our choice. */
const UNREAD_MAX = 64 << 10;
/** How long the last word may take. Our choice. */
const LEAVING_MS = 1000;
const CLOSE_NORMAL = 1000;

export interface Handshake {
  readonly headers: Readonly<Record<string, string>>;
  /** What the server must answer in `sec-websocket-accept`. */
  readonly accept: string;
}

/** What a request says that asks for one of these protocols; each handshake is another one. */
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
 * The messages of an upgraded connection, until the server ends it. Pings are answered. Leaving the loop closes the connection. Throws
 * `KUBE_UNAVAILABLE` when it breaks, or when what comes is no WebSocket.
 */
export async function* messagesOf(socket: Duplex, head: Buffer): AsyncGenerator<Buffer> {
  let waiting = head;
  let message: Buffer[] = [];
  let bytes = 0;
  try {
    const parts = socket[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
    for (;;) {
      for (let frame = frameOf(waiting); frame; frame = frameOf(waiting)) {
        waiting = waiting.subarray(frame.length);
        if (frame.opcode === OPCODE_CLOSE) return;
        if (frame.opcode === OPCODE_PING) {
          if (socket.writableLength < UNREAD_MAX)
            socket.write(clientFrame(OPCODE_PONG, frame.payload));
        } else if (frame.opcode === OPCODE_PONG) continue;
        else if (![OPCODE_CONTINUED, OPCODE_TEXT, OPCODE_BINARY].includes(frame.opcode)) {
          throw broken('the server sent a frame of an unknown kind');
        } else {
          bytes += frame.payload.length;
          if (bytes > FRAME_MAX || message.length >= PIECES_MAX)
            throw broken('the server sent a message that is too long');
          message.push(frame.payload);
          if (!frame.isLast) continue;
          yield Buffer.concat(message);
          message = [];
          bytes = 0;
        }
      }
      const next = await parts.next();
      if (next.done === true) throw broken('the connection ended in between');
      waiting = Buffer.concat([waiting, next.value]);
    }
  } catch (cause) {
    if (cause instanceof CodedError) throw cause;
    throw broken(cause instanceof Error ? cause.message : String(cause), cause);
  } finally {
    const status = Buffer.alloc(2);
    status.writeUInt16BE(CLOSE_NORMAL);
    // What comes now is of no interest, nor that the other side has gone first.
    socket.on('error', () => undefined);
    if (!socket.writable) socket.destroy();
    else {
      // The other side may read nothing any more.
      const late = setTimeout(() => void socket.destroy(), LEAVING_MS);
      socket.on('close', () => {
        clearTimeout(late);
      });
      socket.end(clientFrame(OPCODE_CLOSE, status), () => void socket.destroy());
    }
  }
}

const broken = (why: string, cause?: unknown): CodedError =>
  new CodedError('KUBE_UNAVAILABLE', `the stream from the API server broke: ${why}`, {
    retry: 'backoff',
    cause,
  });

interface Frame {
  readonly opcode: number;
  readonly isLast: boolean;
  readonly payload: Buffer;
  /** With its header. */
  readonly length: number;
}

/** The first frame, as soon as it is there whole. */
function frameOf(bytes: Buffer): Frame | undefined {
  if (bytes.length < 2) return undefined;
  const [first = 0, second = 0] = bytes;
  if ((second & 0x80) !== 0) throw broken('the server sent a masked frame');
  const short = second & 0x7f;
  const header = short === 126 ? 4 : short === 127 ? 10 : 2;
  if (bytes.length < header) return undefined;
  const size =
    short === 126
      ? bytes.readUInt16BE(2)
      : short === 127
        ? Number(bytes.readBigUInt64BE(2))
        : short;
  if (size > FRAME_MAX) throw broken('the server sent a frame that is too long');
  if (bytes.length < header + size) return undefined;
  return {
    opcode: first & 0x0f,
    isLast: (first & 0x80) !== 0,
    payload: bytes.subarray(header, header + size),
    length: header + size,
  };
}

/** Clients mask what they send (RFC 6455, 5.3). For control frames: up to 125 bytes. */
function clientFrame(opcode: number, payload: Buffer): Buffer {
  const mask = randomBytes(4);
  const short = payload.subarray(0, 125);
  const masked = Buffer.from(short.map((byte, index) => byte ^ (mask[index % 4] ?? 0)));
  return Buffer.concat([Buffer.from([0x80 | opcode, 0x80 | short.length]), mask, masked]);
}
