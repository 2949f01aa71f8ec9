/** The parts of `ws` for a connection that is already upgraded. They have no types. */
declare module 'ws' {
  import type { Duplex, Writable } from 'node:stream';

  export interface ReceiverOptions {
    /** Maximum bytes of a message. */
    readonly maxPayload: number;
    /** Maximum pieces of a message. */
    readonly maxFragments: number;
    readonly skipUTF8Validation: boolean;
  }

  /** Reads frames. Emits `message`, `ping`, and `conclude` at the end. */
  export class Receiver extends Writable {
    constructor(options: ReceiverOptions);
  }

  export class Sender {
    constructor(socket: Duplex);
    pong(data: Buffer, mask: boolean): void;
    close(code: number, data: undefined, mask: boolean): void;
  }
}
