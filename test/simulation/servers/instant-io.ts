import { syncBuiltinESMExports } from 'node:module';
import { createGzip } from 'node:zlib';
import { fillRandomly } from '../engine/process.ts';
import { replace, type Undo } from '../engine/replace.ts';
import type { Random } from '../virtual-time.ts';

/** Files below this path are in memory. */
export const SCRATCH = '/in-memory';

interface ZlibHandle {
  readonly init: (...args: unknown[]) => void;
  readonly write: (...args: unknown[]) => void;
  readonly writeSync: (...args: unknown[]) => void;
}

/**
 * Keeps scratch files in memory and compresses synchronously. Node's threads would add real time
 * and an order outside of the seed. A killed process also leaves no descriptors.
 */
export class InstantIo implements Disposable {
  readonly #undo: Undo[] = [];

  constructor(random: Random) {
    const files = process.getBuiltinModule('node:fs/promises');
    const cryptography = process.getBuiltinModule('node:crypto');
    const { open, unlink, mkdtemp, rm, statfs } = files;
    const isOurs = (path: unknown): boolean => String(path).startsWith(SCRATCH);
    let folders = 0;
    const here =
      (own: (path: string) => unknown, other: unknown) =>
      (path: string, ...rest: unknown[]): unknown =>
        isOurs(path)
          ? Promise.resolve(own(path))
          : (other as (...args: unknown[]) => unknown)(path, ...rest);
    this.#undo.push(
      replace(
        files,
        'open',
        here(() => new MemoryFile(), open),
      ),
      replace(
        files,
        'unlink',
        here(() => undefined, unlink),
      ),
      replace(
        files,
        'mkdtemp',
        here((path) => `${path}${folders++}`, mkdtemp),
      ),
      replace(
        files,
        'rm',
        here(() => undefined, rm),
      ),
      replace(
        files,
        'statfs',
        here(() => ({ bavail: 1 << 20, bsize: 1 << 20 }), statfs),
      ),
      replace(cryptography, 'randomBytes', (length: number) =>
        fillRandomly(Buffer.alloc(length), random),
      ),
    );
    const proto = Object.getPrototypeOf(
      (createGzip() as unknown as { _handle: ZlibHandle })._handle,
    ) as ZlibHandle;
    const init: unknown = Reflect.get(proto, 'init');
    const callbacks = new WeakMap<ZlibHandle, () => void>();
    this.#undo.push(
      replace(proto, 'init', function (this: ZlibHandle, ...args: unknown[]) {
        const callback = args.find((arg) => typeof arg === 'function');
        if (callback) callbacks.set(this, callback as () => void);
        Reflect.apply(init as (...given: unknown[]) => void, this, args);
      }),
      replace(proto, 'write', function (this: ZlibHandle, ...args: unknown[]) {
        this.writeSync(...args);
        process.nextTick(() => {
          callbacks.get(this)?.call(this);
        });
      }),
    );
    syncBuiltinESMExports();
  }

  [Symbol.dispose](): void {
    for (const undo of this.#undo.splice(0).reverse()) undo();
    syncBuiltinESMExports();
  }
}

/** A file without a name. */
class MemoryFile {
  #bytes = Buffer.alloc(4096);
  #length = 0;

  write(
    bytes: Uint8Array,
    from: number,
    length: number,
    at: number,
  ): Promise<{ bytesWritten: number }> {
    const end = at + length;
    if (end > this.#bytes.length) {
      const more = Buffer.alloc(Math.max(end, this.#bytes.length * 2));
      this.#bytes.copy(more);
      this.#bytes = more;
    }
    this.#bytes.set(bytes.subarray(from, from + length), at);
    this.#length = Math.max(this.#length, end);
    return Promise.resolve({ bytesWritten: length });
  }

  read(
    buffer: Uint8Array,
    from: number,
    length: number,
    at: number,
  ): Promise<{ bytesRead: number }> {
    const piece = this.#bytes.subarray(at, Math.min(this.#length, at + length));
    buffer.set(piece, from);
    return Promise.resolve({ bytesRead: piece.length });
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}
