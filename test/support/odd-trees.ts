import { execFileSync, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { posix } from '../../src/base/index.ts';
import { noise } from './noise.ts';

/**
 * Random trees with all kinds of entries, and their contents. Each character of a path is one byte
 * (`latin1`), because some names are not UTF-8.
 */
export type OddTree = ReadonlyMap<string, OddEntry>;
export type Random = (below: number) => number;

export interface OddEntry {
  readonly type: 'file' | 'directory' | 'link' | 'fifo' | 'socket';
  /** Bytes of a file, or the target of a link. */
  readonly content: string;
  /** Mode, owner, time and extended attributes. */
  readonly attributes: string;
  /** Names of the same file in the tree, sorted. */
  readonly names: string;
  /** All names of the file are in the tree. */
  readonly isOwn: boolean;
}

export function randomOf(seed: number): Random {
  let x = (seed * 2_654_435_761 + 1) >>> 0;
  return (below) => {
    x ^= x << 13;
    x >>>= 0;
    x ^= x >>> 17;
    x ^= x << 5;
    x >>>= 0;
    return x % below;
  };
}

/** The bytes of a path. */
export const disk = (path: string): Buffer => Buffer.from(path, 'latin1');

export const LARGE_BYTES = 300_000;
/** Two names that differ in case, and two that are not UTF-8 and look the same. */
const NAMES = ['a', 'A', 'b', 'c', '\xffd', '\xfed', 'keep-1', 'keep-2'];
const MODES = [0o644, 0o755, 0o600, 0o400, 0, 0o4755, 0o2711, 0o1777];
/** Before 1970, and with nanoseconds. */
const TIMES = [-1e9, -1, 0, 1e9, 1.7e9];
const CAPABILITY = Buffer.from('0100000200040000000000000000000000000000', 'hex');
/** `u::rw-,u:1234:rw-,g::r--,m::rw-,o::r--` */
const ACCESS_LIST = Buffer.from(
  '0200000001000600ffffffff02000600d204000004000400ffffffff10000600ffffffff20000400ffffffff',
  'hex',
);

export interface GrowOptions {
  readonly random: Random;
  /** Includes names that the rules leave out. */
  readonly isKept?: boolean;
  /** The target of links. Its files get more names in the tree; sockets are made too. */
  readonly outside?: string;
  /** Makes entries immutable until {@link thaw} (`chattr +i`). A restore must not change them. */
  readonly isFrozen?: boolean;
}

/** Makes a directory and random entries in it. */
export function grow(root: string, options: GrowOptions): void {
  const files: string[] = [];
  const fill = (path: string, depth: number): void => {
    fs.mkdirSync(disk(path), { recursive: true });
    for (const name of NAMES) {
      if (options.isKept !== true && name.startsWith('keep')) continue;
      const here = `${path}/${name}`;
      const kind = options.random(14);
      const isThere = fs.lstatSync(disk(here), { throwIfNoEntry: false }) !== undefined;
      // Changes the tree.
      if (isThere && options.random(3) > 0) continue;
      fs.rmSync(disk(here), { recursive: true, force: true });
      if (kind > 10 && depth < 2) fill(here, depth + 1);
      else if (!growEntry(here, kind, options, files)) continue;
      if (!name.startsWith('keep')) adorn(here, options.random);
    }
  };
  fill(root, 0);
  adorn(root, options.random);
  if (options.isFrozen !== true) return;
  const paths = [...look(root)].filter(
    ([path, { type }]) => (type === 'file' || type === 'directory') && !/[^ -~]/.test(path),
  );
  for (let i = 0; i < 2; i++) {
    const [path] = paths[options.random(paths.length)] ?? [];
    if (path !== undefined) execFileSync('chattr', ['+i', '--', `${root}/${path}`]);
  }
}

function growEntry(here: string, kind: number, options: GrowOptions, files: string[]): boolean {
  const { random, outside } = options;
  const at = disk(here);
  if (kind < 4) fs.writeFileSync(at, `${random(1e6)}`.repeat(random(4) === 0 ? 0 : random(50)));
  else if (kind === 4) fs.writeFileSync(at, noise(String(random(1e6)), LARGE_BYTES));
  else if (kind === 5) {
    // With a hole at both ends.
    fs.writeFileSync(at, '');
    const file = fs.openSync(at, 'r+');
    fs.writeSync(file, noise(String(random(1e6)), 9000), 0, 9000, 150_000);
    fs.ftruncateSync(file, LARGE_BYTES);
    fs.closeSync(file);
  } else if (kind < 8) {
    const goals = [
      'nowhere',
      '.',
      '..',
      'a',
      '/dev/null',
      outside ?? '/proc',
      `${outside ?? ''}/file-1`,
    ];
    fs.symlinkSync(goals[random(goals.length)] ?? '', at);
  } else if (kind === 8) {
    const isSocket = outside !== undefined && random(2) === 0;
    posix().makeNode(at, isSocket ? 0o140600 : 0o010600, 0n);
  } else if (kind === 9 && files.length > 0)
    fs.linkSync(disk(files[random(files.length)] ?? ''), at);
  else if (kind === 10 && outside !== undefined) {
    fs.linkSync(disk(`${outside}/file-${random(3)}`), at);
    return true;
  } else return false;
  if (kind < 6) files.push(here);
  return true;
}

/** Gives an entry random attributes. If an entry has several names, the last name decides. */
function adorn(here: string, random: Random): void {
  const at = disk(here);
  const stat = fs.lstatSync(at);
  if (stat.nlink > 1 && !stat.isDirectory()) return;
  if (random(3) === 0) fs.lchownSync(at, random(3) * 617, random(3) * 617);
  if (stat.isFile() || stat.isDirectory()) {
    if (random(4) === 0) setXattr(at, 'user.name', Buffer.from(`value ${random(100)}`));
    if (random(12) === 0) setXattr(at, 'trusted.\xfe', Buffer.from([random(256)]));
    if (random(12) === 0) setXattr(at, 'system.posix_acl_access', ACCESS_LIST);
    if (random(12) === 0 && stat.isFile()) setXattr(at, 'security.capability', CAPABILITY);
    if (random(12) === 0 && stat.isDirectory())
      setXattr(at, 'system.posix_acl_default', ACCESS_LIST);
  }
  if (!stat.isSymbolicLink() && random(2) === 0) fs.chmodSync(at, MODES[random(MODES.length)] ?? 0);
  const time = (TIMES[random(TIMES.length)] ?? 0) + random(1e6) + random(1000) / 1024;
  fs.lutimesSync(at, time, time);
}

function setXattr(at: Buffer, name: string, value: Buffer): void {
  const file = fs.openSync(at, 'r');
  posix().attributes?.set(file, Buffer.from(`${name}\0`, 'latin1'), value);
  fs.closeSync(file);
}

/** All entries below a directory, and the directory itself as ''. */
export function look(root: string): OddTree {
  const found = new Map<
    string,
    Omit<OddEntry, 'names' | 'isOwn'> & { file: string; links: number }
  >();
  const names = new Map<string, string[]>();
  const visit = (path: string): void => {
    const here = disk(root + path);
    const stat = fs.lstatSync(here, { bigint: true });
    const key = path.slice(1);
    const file = `${stat.dev} ${stat.ino}`;
    const isDirectory = stat.isDirectory();
    if (!isDirectory) names.set(file, [...(names.get(file) ?? []), key]);
    const mode = stat.isSymbolicLink() ? 0 : Number(stat.mode & 0o7777n);
    const attributes = `${mode.toString(8)} ${stat.uid}:${stat.gid} ${stat.mtimeNs} ${xattrsOf(here)}`;
    found.set(key, { type: typeOf(stat), content: contentOf(here, stat), attributes, file, links: Number(stat.nlink) }); // prettier-ignore
    if (!isDirectory) return;
    const below = fs.readdirSync(here, { encoding: 'buffer' }) as unknown as Buffer[];
    for (const name of below.sort((a, b) => a.compare(b)))
      visit(`${path}/${name.toString('latin1')}`);
  };
  visit('');
  return new Map(
    [...found].map(([path, { file, links, ...entry }]) => {
      const own = names.get(file) ?? [];
      return [path, { ...entry, names: own.join('\n'), isOwn: own.length === links }];
    }),
  );
}

function typeOf(stat: fs.BigIntStats): OddEntry['type'] {
  if (stat.isDirectory()) return 'directory';
  if (stat.isSymbolicLink()) return 'link';
  if (stat.isFIFO()) return 'fifo';
  return stat.isSocket() ? 'socket' : 'file';
}

function contentOf(here: Buffer, stat: fs.BigIntStats): string {
  if (stat.isSymbolicLink())
    return fs.readlinkSync(here, { encoding: 'buffer' }).toString('latin1');
  return stat.isFile() ? fs.readFileSync(here, 'latin1') : '';
}

function xattrsOf(here: Buffer): string {
  const calls = posix().attributes;
  const slash = here.lastIndexOf('/');
  const directory = fs.openSync(here.subarray(0, slash), 'r');
  try {
    const name = Buffer.concat([here.subarray(slash + 1), Buffer.of(0)]);
    const list = Buffer.from(calls?.listIn(directory, name) ?? []).toString('latin1');
    const lines = list
      .split('\0')
      .slice(0, -1)
      .sort()
      .map((each) => {
        const value = calls?.getIn(directory, name, Buffer.from(`${each}\0`, 'latin1'));
        return `${each}=${Buffer.from(value ?? []).toString('hex')}`;
      });
    return lines.join(' ');
  } finally {
    fs.closeSync(directory);
  }
}

/** Removes `chattr +i` from a tree. */
export function thaw(root: string): void {
  // Fails for links and FIFOs, which have no such flag.
  spawnSync('chattr', ['-R', '-f', '-i', root], { stdio: 'ignore' });
}
