import { posix } from '../../../src/base/index.ts';
import { currentProcess } from './process.ts';
import {
  type DirectoryNode,
  type FileNode,
  type Node,
  readContent,
  type Volumes,
} from './volume.ts';
import { replace } from './replace.ts';

type Path = string | Uint8Array | URL;
type Functions = Record<string, unknown>;

const FIRST_DESCRIPTOR = 1 << 30;
const O_NONBLOCK = 0o4000;
const O_NOFOLLOW = 0o400000;
const O_DIRECTORY = 0o200000;
const TYPES = { file: 0o100644, directory: 0o040755, link: 0o120777, pipe: 0o010600 } as const;

function fail(code: string, syscall: string, path: string): never {
  const error = new Error(`${code}: it is so in the simulation, ${syscall} '${path}'`);
  throw Object.assign(error, { code, syscall, errno: -1, path });
}

/** The bytes of a path as Latin-1, or undefined for paths outside the volumes. */
function ours(path: unknown): string | undefined {
  if (typeof path === 'string') {
    return path.startsWith('/volume/') ? Buffer.from(path).toString('latin1') : undefined;
  }
  if (!(path instanceof Uint8Array)) return undefined;
  const text = Buffer.from(path).toString('latin1');
  return text.startsWith('/volume/') ? text : undefined;
}

const isOurs = (descriptor: unknown): descriptor is number =>
  typeof descriptor === 'number' && descriptor >= FIRST_DESCRIPTOR;

function sizeOf(node: Node): number {
  if (node.kind === 'file') return node.size;
  return node.kind === 'directory' ? 4096 + 32 * node.children.size : node.target.length;
}

function statOf(node: Node, bigint: boolean): object {
  const size = sizeOf(node);
  const is = (kind: Node['kind']) => (): boolean => node.kind === kind;
  const number = (value: number): number | bigint => (bigint ? BigInt(value) : value);
  const ms = Number(node.mtimeNs / 1000n) / 1000;
  return {
    mode: number(TYPES[node.kind]),
    size: number(size),
    blocks: number(Math.ceil(size / 512)),
    uid: number(0),
    gid: number(0),
    dev: number(7),
    rdev: number(0),
    nlink: number(1),
    ino: number(1),
    mtimeNs: node.mtimeNs,
    ctimeNs: node.mtimeNs,
    mtimeMs: ms,
    ctimeMs: ms,
    isFile: is('file'),
    isDirectory: is('directory'),
    isSymbolicLink: is('link'),
    isFIFO: is('pipe'),
    isBlockDevice: () => false,
    isCharacterDevice: () => false,
    isSocket: () => false,
  };
}

/** The engine's calls of `fs`, for volumes in memory. */
class VolumeFiles {
  readonly #volumes: Volumes;
  readonly #open = new Map<number, { node: Node; path: string; position: number }>();
  #descriptors = FIRST_DESCRIPTOR;

  constructor(volumes: Volumes) {
    this.#volumes = volumes;
  }

  find(path: string, syscall: string): Node {
    return this.#volumes.find(path) ?? fail('ENOENT', syscall, path);
  }

  /** Undefined if the call blocks forever, like a pipe without a writer. */
  open(path: string, flags: unknown): number | undefined {
    const bits = typeof flags === 'number' ? flags : 0;
    const node = this.find(path, 'open');
    // Links have no target here.
    if (node.kind === 'link') fail((bits & O_NOFOLLOW) !== 0 ? 'ELOOP' : 'ENOENT', 'open', path);
    if (node.kind === 'pipe' && (bits & O_NONBLOCK) === 0) return undefined;
    if (node.kind !== 'directory' && (bits & O_DIRECTORY) !== 0) fail('ENOTDIR', 'open', path);
    const descriptor = this.#descriptors++;
    this.#open.set(descriptor, { node, path, position: 0 });
    return descriptor;
  }

  close(descriptor: number): void {
    if (!this.#open.delete(descriptor)) fail('EBADF', 'close', String(descriptor));
  }

  stat(descriptor: number, bigint: boolean): object {
    return statOf(this.#of(descriptor).node, bigint);
  }

  #of(descriptor: number): { node: Node; path: string; position: number } {
    return this.#open.get(descriptor) ?? fail('EBADF', 'read', String(descriptor));
  }

  read(descriptor: number, out: Uint8Array, offset: number, length: number, at: unknown): number {
    const opened = this.#of(descriptor);
    const { node, path } = opened;
    if (node.kind === 'directory') fail('EISDIR', 'read', path);
    if (node.kind !== 'file') return 0;
    if (node.broken !== undefined) fail(node.broken, 'read', path);
    const isPlaced = typeof at === 'number' && at >= 0;
    const got = readContent(
      node,
      out.subarray(offset, offset + length),
      isPlaced ? at : opened.position,
    );
    if (!isPlaced) opened.position += got;
    return got;
  }

  directory(path: string, syscall: string): DirectoryNode {
    const node = this.find(path, syscall);
    return node.kind === 'directory' ? node : fail('ENOTDIR', syscall, path);
  }

  list(path: string, options: unknown): unknown[] {
    const names = [...this.directory(path, 'scandir').children.keys()];
    const encoding =
      typeof options === 'string' ? options : (options as Functions | undefined)?.encoding;
    const raw = names.map((name) => Buffer.from(name, 'latin1'));
    return encoding === 'buffer' ? raw : raw.map((name) => name.toString());
  }

  link(path: string, options: unknown): string | Buffer {
    const node = this.find(path, 'readlink');
    if (node.kind !== 'link') fail('EINVAL', 'readlink', path);
    const target = Buffer.from(node.target);
    return (options as Functions | undefined)?.encoding === 'buffer' ? target : target.toString();
  }
}

/** A file opened by `fs.promises`. */
class SimulatedHandle {
  readonly fd: number;
  readonly #files: VolumeFiles;

  constructor(files: VolumeFiles, descriptor: number) {
    this.#files = files;
    this.fd = descriptor;
  }

  async stat(options?: { bigint?: boolean }): Promise<object> {
    await slow('stat');
    return this.#files.stat(this.fd, options?.bigint === true);
  }

  async read(
    first:
      Uint8Array | { buffer: Uint8Array; offset?: number; length?: number; position?: unknown },
    second?: unknown,
    third?: unknown,
    fourth?: unknown,
  ): Promise<{ bytesRead: number; buffer: Uint8Array }> {
    await slow('read');
    const buffer = first instanceof Uint8Array ? first : first.buffer;
    const options = (
      first instanceof Uint8Array ? (typeof second === 'object' ? second : undefined) : first
    ) as { offset?: number; length?: number; position?: unknown } | undefined;
    const offset = options ? (options.offset ?? 0) : ((second as number | undefined) ?? 0);
    const length = options?.length ?? (third as number | undefined) ?? buffer.length - offset;
    const position = options ? options.position : fourth;
    return { bytesRead: this.#files.read(this.fd, buffer, offset, length, position), buffer };
  }

  async readFile(options?: unknown): Promise<string | Buffer> {
    await slow('read');
    const { size } = this.#files.stat(this.fd, false) as { size: number };
    const bytes = Buffer.alloc(size);
    const got = this.#files.read(this.fd, bytes, 0, size, 0);
    return inEncoding(bytes.subarray(0, got), options);
  }

  async close(): Promise<void> {
    await Promise.resolve();
    this.#files.close(this.fd);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

const inEncoding = (bytes: Buffer, options: unknown): string | Buffer => {
  const encoding =
    typeof options === 'string' ? options : (options as Functions | undefined)?.encoding;
  return encoding === undefined || encoding === null
    ? bytes
    : bytes.toString(encoding as BufferEncoding);
};

/** Waits as long as the volume takes. */
async function slow(what: string): Promise<void> {
  const process = currentProcess();
  if (process)
    await process.wait(`${what} of the volume`, process.random.between(0, process.options.readMs));
}

/** Replaces `fs` for paths below /volume. Returns undo functions. */
export function patchFiles(volumes: Volumes): (() => void)[] {
  const files = new VolumeFiles(volumes);
  const sync = process.getBuiltinModule('node:fs') as unknown as Functions;
  const promises = process.getBuiltinModule('node:fs/promises') as unknown as Functions;
  const undo: (() => void)[] = [];
  const patch = (
    target: Functions,
    name: string,
    mine: (key: never, ...rest: never[]) => unknown,
    isMine: (value: unknown) => unknown = ours,
  ): void => {
    const original = target[name] as (...parameters: unknown[]) => unknown;
    undo.push(
      replace(target, name, (...parameters: unknown[]) => {
        const key = isMine(parameters[0]);
        if (key === undefined || key === false) return original(...parameters);
        return mine(
          (key === true ? parameters[0] : key) as never,
          ...(parameters.slice(1) as never[]),
        );
      }),
    );
  };
  // The kernel does not know these descriptors, and neither do libc and /proc.
  const native = posix();
  for (const name of ['openWithoutLinks', 'statusReader'] as const) {
    const own = Object.getOwnPropertyDescriptor(native, name) ?? {};
    Object.defineProperty(native, name, { configurable: true, get: () => undefined });
    undo.push(() => Object.defineProperty(native, name, own));
  }
  const isProc = (path: unknown): unknown => path === '/proc/self/fd/';
  patch(sync, 'existsSync', () => false, isProc);
  const isBig = (options: unknown): boolean => (options as Functions | undefined)?.bigint === true;
  patch(
    sync,
    'openSync',
    (path: string, flags: unknown) => files.open(path, flags) ?? fail('EIO', 'open', path),
  );
  patch(
    sync,
    'closeSync',
    (descriptor: number) => {
      files.close(descriptor);
    },
    isOurs,
  );
  patch(
    sync,
    'fstatSync',
    (descriptor: number, options: unknown) => files.stat(descriptor, isBig(options)),
    isOurs,
  );
  patch(
    sync,
    'readSync',
    (descriptor: number, out: Uint8Array, offset: number, length: number, at: unknown) =>
      files.read(descriptor, out, offset, length, at),
    isOurs,
  );
  patch(sync, 'readdirSync', (path: string, options: unknown) => files.list(path, options));
  patch(sync, 'lstatSync', (path: string, options: unknown) =>
    statOf(files.find(path, 'lstat'), isBig(options)),
  );
  patch(sync, 'statSync', (path: string, options: unknown) =>
    statOf(files.find(path, 'stat'), isBig(options)),
  );
  patch(sync, 'readlinkSync', (path: string, options: unknown) => files.link(path, options));
  patch(promises, 'realpath', async (path: string) => {
    await slow('realpath');
    files.find(path, 'realpath');
    return Buffer.from(path, 'latin1').toString();
  });
  const look = async (path: string, options: unknown): Promise<object> => {
    await slow('stat');
    return statOf(files.find(path, 'stat'), isBig(options));
  };
  patch(promises, 'stat', look);
  patch(promises, 'lstat', look);
  patch(promises, 'readdir', async (path: string, options: unknown) => {
    await slow('readdir');
    return files.list(path, options);
  });
  patch(promises, 'opendir', async (path: string, options: unknown) => {
    await slow('opendir');
    const names = files.list(path, options);
    return {
      async *[Symbol.asyncIterator]() {
        for (const name of names) yield await Promise.resolve({ name });
      },
    };
  });
  const open = async (path: string, flags: unknown): Promise<SimulatedHandle> => {
    await slow('open');
    const descriptor = files.open(path, flags);
    if (descriptor === undefined) {
      await currentProcess()?.forever(`open ${path}`);
      throw new Error('a wait without an end has ended');
    }
    return new SimulatedHandle(files, descriptor);
  };
  patch(promises, 'open', open);
  patch(promises, 'readFile', async (path: string, options: unknown) => {
    const handle = await open(path, 0);
    try {
      return await handle.readFile(options);
    } finally {
      await handle.close();
    }
  });
  return undo;
}

export type { FileNode, Path };
