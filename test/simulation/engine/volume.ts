import type { Random, VirtualTime } from '../virtual-time.ts';
import { HOUR_MS, START_NS } from './process.ts';

export interface FileNode {
  readonly kind: 'file';
  /** Decides the bytes, with the version. Two files may have the same content. */
  content: number;
  size: number;
  mtimeNs: bigint;
  /** Its own bytes, for example of an ignore file. */
  text?: Uint8Array;
  /** Reads fail with this code. */
  broken?: string;
  changedMs: number;
}

export interface DirectoryNode {
  readonly kind: 'directory';
  /** Keyed by the bytes of the name, as a Latin-1 string. */
  readonly children: Map<string, Node>;
  mtimeNs: bigint;
  changedMs: number;
}

export interface OtherNode {
  readonly kind: 'link' | 'pipe';
  readonly target: string;
  mtimeNs: bigint;
  changedMs: number;
}

export type Node = FileNode | DirectoryNode | OtherNode;

/** Random bytes for all files. The odd length is no multiple of any block. */
const POOL = ((): Buffer => {
  const pool = Buffer.alloc((1 << 20) + 7);
  let x = 0x9e3779b9;
  for (let i = 0; i < pool.length; i++) {
    x = Math.imul(x ^ (x >>> 15), 0x2c1b3c6d) + i;
    pool[i] = (x ^ (x >>> 13)) & 255;
  }
  return pool;
})();

/** Writes the bytes of a file from an offset on. Returns their number. */
export function readContent(file: FileNode, out: Uint8Array, offset: number): number {
  const length = Math.max(0, Math.min(out.length, file.size - offset));
  if (file.text) {
    out.set(file.text.subarray(offset, offset + length));
    return length;
  }
  if (file.content === 0) {
    out.fill(0, 0, length);
    return length;
  }
  for (let at = 0; at < length;) {
    const from = (file.content * 7919 + offset + at) % POOL.length;
    const take = Math.min(length - at, POOL.length - from);
    out.set(POOL.subarray(from, from + take), at);
    at += take;
  }
  return length;
}

/** Names that have broken programs before. */
const ODD_NAMES = [
  'a b',
  '-rf',
  '~',
  '$(x)',
  'line\nbreak',
  'b\xe4r',
  'b\xebr',
  '\xff',
  '..x',
  'ä',
];

export interface VolumeOptions {
  readonly files: number;
  readonly bytesMax: number;
  /** Shares of files that are read as streams, and of directories. */
  readonly largeShare: number;
  readonly directoryShare: number;
  readonly isHostile: boolean;
}

/** A volume: a tree that its users change at any time, or an image. */
export class Volume {
  readonly name: string;
  readonly root: DirectoryNode;
  readonly #random: Random;
  readonly #time: VirtualTime;
  readonly #options: VolumeOptions;
  #contents: number;

  constructor(name: string, time: VirtualTime, random: Random, options: VolumeOptions) {
    this.name = name;
    this.#time = time;
    this.#random = random;
    this.#options = options;
    // Volumes share some contents, so a writer finds contents of another writer.
    this.#contents = random.below(40);
    this.root = this.#newDirectory();
    for (let i = 0; i < options.files; i++) this.#addSomething();
    if (options.isHostile) this.#addHostile();
  }

  get path(): string {
    return `/volume/${this.name}`;
  }

  /** Number of files that are read as streams, which decides the read time. */
  get streams(): number {
    const count = (directory: DirectoryNode): number =>
      [...directory.children.values()].reduce((sum, node) => {
        if (node.kind === 'directory') return sum + count(node);
        return sum + (node.kind === 'file' && node.size >= 65_536 ? 1 : 0);
      }, 0);
    return count(this.root);
  }

  #nowNs(): bigint {
    return START_NS + BigInt(Math.floor(this.#time.nowMs * 1000)) * 1000n;
  }

  #newDirectory(): DirectoryNode {
    const mtimeNs = this.#nowNs();
    return { kind: 'directory', children: new Map(), mtimeNs, changedMs: this.#time.nowMs };
  }

  #newFile(text?: string): FileNode {
    const random = this.#random;
    const small = random.below(20_000);
    const large = 66_000 + random.below(Math.max(1, this.#options.bytesMax - 66_000));
    const bytes = text === undefined ? undefined : Buffer.from(text);
    return {
      kind: 'file',
      content: random.chance(0.02) ? 0 : ++this.#contents,
      size: bytes?.length ?? (random.chance(this.#options.largeShare) ? large : small),
      mtimeNs: this.#nowNs(),
      changedMs: this.#time.nowMs,
      ...(bytes && { text: bytes }),
    };
  }

  #someDirectory(): DirectoryNode {
    let at = this.root;
    for (let depth = 0; depth < 4; depth++) {
      const below = [...at.children.values()].filter((node) => node.kind === 'directory');
      const next = below[this.#random.below(below.length + 1)];
      if (!next) break;
      at = next;
    }
    return at;
  }

  #put(directory: DirectoryNode, name: string, node: Node): void {
    directory.children.set(name, node);
    directory.mtimeNs = this.#nowNs();
    directory.changedMs = this.#time.nowMs;
  }

  #addSomething(): void {
    const random = this.#random;
    const directory = this.#someDirectory();
    const name = `${random.chance(0.1) ? (ODD_NAMES[random.below(ODD_NAMES.length)] ?? '') : 'n'}${random.below(1000)}`;
    if (random.chance(this.#options.directoryShare))
      this.#put(directory, name, this.#newDirectory());
    else if (random.chance(0.06)) {
      const target = { target: `../n${random.below(9)}`, mtimeNs: this.#nowNs() };
      this.#put(directory, name, { kind: 'link', ...target, changedMs: this.#time.nowMs });
    } else this.#put(directory, name, this.#newFile());
  }

  /** Adds entries that a hostile tenant may use to break a reader. */
  #addHostile(): void {
    const random = this.#random;
    const directory = this.#someDirectory();
    const other = { mtimeNs: this.#nowNs(), changedMs: this.#time.nowMs };
    switch (random.below(5)) {
      case 0:
        this.#put(directory, '.kopiaignore', { kind: 'pipe', target: '', ...other });
        break;
      case 1:
        this.#put(directory, '.kopiaignore', {
          kind: 'link',
          target: '/volume/../etc/shadow',
          ...other,
        });
        break;
      case 2:
        this.#put(directory, '.kopiaignore', this.#newFile('*a*a*a*a*b\n!n*\n[z-a]\n'));
        break;
      case 3:
        for (let i = 0; i < 300; i++) {
          this.#put(directory, `\xe4${i % 150}${i % 2 ? '\xff' : '\xfe'}`, this.#newFile(''));
        }
        break;
      default:
        this.#put(directory, 'CACHEDIR.TAG', { kind: 'pipe', target: '', ...other });
    }
  }

  /** A user changes the volume. */
  change(): void {
    const random = this.#random;
    const directory = this.#someDirectory();
    const names = [...directory.children.keys()];
    const name = names[random.below(names.length)];
    const node = name === undefined ? undefined : directory.children.get(name);
    if (node?.kind === 'file' && !node.text && random.chance(0.6)) {
      node.content = ++this.#contents;
      if (random.chance(0.5)) node.size = Math.floor(node.size * random.between(0.3, 1.5));
      node.mtimeNs = this.#nowNs();
      node.changedMs = this.#time.nowMs;
    } else if (name !== undefined && node && random.chance(0.5)) {
      directory.children.delete(name);
      directory.mtimeNs = this.#nowNs();
      directory.changedMs = this.#time.nowMs;
    } else {
      this.#addSomething();
    }
  }

  /** Makes a file unreadable for a while. */
  breakOne(): void {
    const directory = this.#someDirectory();
    const files = [...directory.children.values()].filter((node) => node.kind === 'file');
    const file = files[this.#random.below(files.length)];
    if (!file) return;
    file.broken = 'EIO';
    this.#time.after(HOUR_MS, () => {
      delete file.broken;
    });
  }
}

/** The image of a raw device: fixed size, changed in places. */
export function newImage(name: string, time: VirtualTime, random: Random, bytes: number): Volume {
  const volume = new Volume(name, time, random, {
    files: 0,
    bytesMax: bytes,
    largeShare: 0,
    directoryShare: 0,
    isHostile: false,
  });
  volume.root.children.set('image', {
    kind: 'file',
    content: 1 + random.below(1000),
    size: bytes,
    mtimeNs: START_NS,
    changedMs: 0,
  });
  return volume;
}

/** All volumes by path. */
export class Volumes {
  readonly #root: DirectoryNode = {
    kind: 'directory',
    children: new Map(),
    mtimeNs: START_NS,
    changedMs: 0,
  };

  add(volume: Volume): void {
    this.#root.children.set(volume.name, volume.root);
  }

  /** `path`: the bytes of a path below /volume, as Latin-1. Links are not followed. */
  find(path: string): Node | undefined {
    let node: Node | undefined = this.#root;
    for (const part of path.split('/').slice(2)) {
      if (part === '' || part === '.') continue;
      node = node?.kind === 'directory' ? node.children.get(part) : undefined;
    }
    return node;
  }
}
