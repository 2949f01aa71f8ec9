import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { isDeepStrictEqual } from 'node:util';
import { posix, silentLogger } from '../../src/base/index.ts';
import type { BlobStorage } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';
import type { Repository } from '../../src/repository/index.ts';
import { type DirectoryEntry, loadPolicyTree } from '../../src/snapshot/index.ts';
import {
  newRestoreCounters,
  type RestoreCounters,
  restoreTreeInPlace,
} from '../../src/uploader/index.ts';
import { canMount, mountSmallDisk } from '../support/full-disk.ts';
import { tempDirectory } from '../support/kopia.ts';
import {
  grow,
  LARGE_BYTES,
  look,
  type OddEntry,
  type OddTree,
  type Random,
  randomOf,
  thaw,
} from '../support/odd-trees.ts';
import { backUp, CLIENT, createTest, openTest, restore } from '../support/repositories.ts';

/**
 * A random target, a random snapshot, and a fault or a kill at a random system call of the restore.
 * Every file must be the whole old file or the whole new file. The calls are replaced before any
 * import of them.
 */
const seam = await vi.hoisted(async () => {
  type Call = (...given: unknown[]) => unknown;
  const { default: functions } = await import('node:fs');
  const { syncBuiltinESMExports } = await import('node:module');
  /** Called before each system call outside the repository. The function may throw. */
  const state: { before: ((name: string) => void) | undefined; isLast: boolean; repo: string } = {
    before: undefined,
    isLast: false,
    repo: '',
  };
  const isOurs = (given: readonly unknown[]): boolean =>
    state.before !== undefined && !String(given[0]).startsWith(state.repo);
  const wrap = (owner: Record<string, Call>, name: string, how: 'sync' | 'back' | 'promise') => {
    const original = owner[name] as Call;
    owner[name] = (...given) => {
      if (!isOurs(given)) return original(...given);
      try {
        state.before?.(name);
      } catch (error) {
        // A kill in the middle of a write.
        if (name === 'writeSync' && state.isLast) {
          const [descriptor, bytes, from, length, at] = given as [number, Buffer, number, number, number]; // prettier-ignore
          original(descriptor, bytes, from, length >> 1, at);
        }
        if (how === 'promise')
          return Promise.reject(error instanceof Error ? error : new Error(String(error)));
        if (how === 'sync') throw error;
        (given.at(-1) as Call)(error);
        return undefined;
      }
      return original(...given);
    };
  };
  const sync = ['openSync', 'writeSync', 'fchownSync', 'fchmodSync', 'chownSync', 'chmodSync', 'renameSync', 'linkSync', 'unlinkSync', 'fstatSync']; // prettier-ignore
  const promises = ['open', 'symlink', 'link', 'unlink', 'rename', 'rmdir', 'chmod', 'lstat', 'opendir', 'readlink', 'access', 'mkdir', 'statfs']; // prettier-ignore
  for (const name of sync) wrap(functions as never, name, 'sync');
  for (const name of promises) wrap(functions.promises as never, name, 'promise');
  const back = ['open', 'mkdir', 'fstat'];
  for (const name of back) wrap(functions as never, name, 'back');
  syncBuiltinESMExports();
  return { state, wrap };
});

const work = tempDirectory('restore-faults');
const at = (...names: string[]): string => join(work, ...names);
const SNAPSHOTS = 16;
const ROOM_BYTES = 64 << 20;
const MODES = ['always', 'if-different', 'never', 'in-place', 'remove-first'] as const;
const CODES = ['EIO', 'ENOSPC', 'EACCES', 'EPERM', 'EROFS', 'EDQUOT', 'EINTR'];
/** A kill, a failed call, Ctrl-C, missing packs or a hanging bucket. */
const TROUBLES = ['kill', 'error', 'cancel', 'missing', 'outage'] as const;
type Mode = (typeof MODES)[number];

let repository: Repository;
const snapshots: { root: DirectoryEntry; tree: OddTree }[] = [];
/** Called before a pack is read. The function may throw. */
let beforePack: ((id: string) => void) | undefined;

class Packs extends ForwardingStorage {
  override async getBlob(...given: Parameters<BlobStorage['getBlob']>): Promise<Uint8Array> {
    if (given[0].startsWith('p')) beforePack?.(given[0]);
    return super.getBlob(...given);
  }
}

beforeAll(async () => {
  const calls = posix() as never;
  for (const name of ['renameNew', 'exchange', 'setDescriptorTime', 'setPinnedTime', 'makeNode'])
    seam.wrap(calls, name, 'sync');
  for (const name of ['set', 'remove']) seam.wrap(posix().attributes as never, name, 'sync');
  seam.state.repo = at('repo');
  await createTest(at('repo'), { splitter: 'FIXED-128K' });
  repository = await openTest(at('repo'), { wrap: (storage) => new Packs(storage) });
  for (let i = 0; i < SNAPSHOTS; i++) {
    const source = at(`source-${i}`);
    grow(source, { random: randomOf(1000 + i) });
    fs.writeFileSync(join(source, '.kopiaignore'), 'keep-*\n');
    const { rootEntry } = await backUp(repository, source);
    snapshots.push({ root: rootEntry, tree: look(source) });
  }
});
afterAll(async () => {
  await repository.close();
  thaw(work);
  fs.rmSync(work, { recursive: true, force: true });
});

const isTemporary = (path: string): boolean =>
  /(^|\/)\.longshore-restore-[0-9a-f]{16}(\/|$)/.test(path);
const isKept = (path: string): boolean => /(^|\/)keep-\d/.test(path);
const isLarge = (entry?: OddEntry): boolean => (entry?.content.length ?? 0) >= LARGE_BYTES;
const isWithin = (mode: Mode): boolean => mode === 'in-place' || mode === 'remove-first';

async function run(
  root: DirectoryEntry,
  target: string,
  mode: Mode,
  own: { counters?: RestoreCounters; signal?: AbortSignal } = {},
): Promise<void> {
  const { counters = newRestoreCounters(), signal = new AbortController().signal } = own;
  if (mode !== 'in-place' && mode !== 'remove-first') {
    await restore(repository, root, target, { overwrite: mode, counters, signal });
    return;
  }
  const source = { host: CLIENT.hostname, userName: CLIENT.username, path: '/none' };
  const policies = await loadPolicyTree(repository, source);
  await restoreTreeInPlace(repository, root, target, {
    logger: silentLogger,
    signal,
    counters,
    ignoreOpenFiles: true,
    removeFirst: mode === 'remove-first',
    excluded: { policies, root, path: '' },
  });
}

const isSame = (a: OddEntry | undefined, b: OddEntry | undefined): boolean =>
  a?.type === b?.type && a?.content === b?.content;
const shown = (entry?: OddEntry): string =>
  entry ? `${entry.type} ${entry.content.slice(0, 30)} ${entry.attributes}` : 'nothing';

/** Each line is an entry that is neither the old one nor the new one. */
function lost(
  before: OddTree,
  after: OddTree,
  wanted: OddTree,
  { mode, trouble }: Pick<Attempt, 'mode' | 'trouble'>,
): string[] {
  const lines: string[] = [];
  for (const [path, old] of before) {
    const [now, replacement] = [after.get(path), wanted.get(path)];
    if (now && (isSame(now, old) || isSame(now, replacement))) continue;
    // Files of several contents are patched: the next run completes them.
    if (isWithin(mode) && isLarge(replacement) && old.isOwn) continue;
    // A directory is removed before the entry that takes its place. Files give way at once.
    const isSwapped = old.type === 'directory' && replacement?.type !== 'directory';
    const mayGo = replacement === undefined || (trouble === 'kill' && isSwapped);
    if (now === undefined && isWithin(mode) && !isKept(path) && mayGo) continue;
    lines.push(
      `${JSON.stringify(path)}: ${shown(now)} is neither ${shown(old)} nor ${shown(replacement)}`,
    );
  }
  for (const [path, now] of after) {
    if (before.has(path) || isTemporary(path) || isSame(now, wanted.get(path))) continue;
    lines.push(`${JSON.stringify(path)}: ${shown(now)} is new, and not whole`);
  }
  return lines;
}

/** Each line is a difference to the snapshot after a run that reported success. */
function different(
  before: OddTree,
  after: OddTree,
  wanted: OddTree,
  { mode, isLoose = false }: { mode: Mode; isLoose?: boolean },
): string[] {
  const lines: string[] = [];
  for (const path of after.keys()) if (isTemporary(path)) lines.push(`${path} is left`);
  for (const [path, old] of before)
    if (isKept(path) && !isSame(after.get(path), old)) lines.push(`${path} is lost`);
  const isBlocked = (path: string): boolean => {
    const parts = path.split('/');
    return parts.some((_, i) => {
      const above = parts.slice(0, i + 1).join('/');
      const [old, replacement] = [before.get(above), wanted.get(above)];
      return (
        old !== undefined && (old.type === 'directory') !== (replacement?.type === 'directory')
      );
    });
  };
  for (const [path, entry] of wanted) {
    if (!isWithin(mode) && isBlocked(path)) continue;
    const now = after.get(path);
    if (mode === 'never' && isSame(now, before.get(path))) continue;
    const isMerge = (!isWithin(mode) || path === '') && before.has(path);
    const isExact = isLoose || mode === 'never' || hasAttributes(now, entry, isMerge);
    if (!isSame(now, entry) || !isExact) {
      lines.push(`${JSON.stringify(path)}: ${shown(now)} is not ${shown(entry)}`);
    }
    const names = entry.names
      .split('\n')
      .filter((name) => isWithin(mode) || !isBlocked(name))
      .join('\n');
    const isLinked = mode === 'never' || isLoose || now === undefined || names === now.names;
    if (!isLinked)
      lines.push(
        `${JSON.stringify(path)} has the names ${JSON.stringify(now.names)}, not ${JSON.stringify(names)}`,
      );
  }
  if (isWithin(mode)) lines.push(...extra(after, wanted));
  return lines;
}

/** Entries that a restore in place should have removed: all but kept entries and their parents. */
function extra(after: OddTree, wanted: OddTree): string[] {
  const stays = [...after].filter(
    ([path, { type }]) => isKept(path) || type === 'socket' || type === 'fifo',
  );
  return [...after.keys()]
    .filter(
      (path) => !wanted.has(path) && !stays.some(([each]) => `${each}/`.startsWith(`${path}/`)),
    )
    .filter((path) => !isKept(path))
    .map((path) => `${JSON.stringify(path)} is extra`);
}

/** `isMerge`: the target keeps extended attributes that the snapshot lacks, and `trusted.*`. */
function hasAttributes(now: OddEntry | undefined, entry: OddEntry, isMerge: boolean): boolean {
  const wanted = entry.attributes.split(' ');
  const found = (now?.attributes ?? '').split(' ');
  const more = found.filter((each) => !wanted.includes(each) && !each.startsWith('trusted.'));
  return (
    wanted.every((each) => each === '' || found.includes(each)) && (isMerge || more.length === 0)
  );
}

interface Attempt {
  readonly random: Random;
  readonly mode: Mode;
  readonly trouble: (typeof TROUBLES)[number];
  readonly code: string;
  readonly faultAt: number;
}

/** Makes trouble at a random call. Returns the signal of the run. */
function prepare({ random, trouble, code, faultAt }: Attempt): AbortSignal {
  const controller = new AbortController();
  let calls = 0;
  seam.state.before = (name) => {
    calls++;
    if (trouble === 'cancel' && calls === faultAt) controller.abort();
    if (trouble !== 'kill' && trouble !== 'error') return;
    const isKill = trouble === 'kill';
    if (calls < faultAt || (calls > faultAt && !isKill)) return;
    seam.state.isLast = isKill && calls === faultAt;
    const own = isKill ? 'EKILLED' : code;
    throw Object.assign(new Error(`${own}: ${name}`), { code: own, syscall: name });
  };
  let reads = 0;
  const outageAt = random(6);
  const damaged = random(3);
  beforePack = (id) => {
    if (trouble === 'outage' && reads++ >= outageAt) throw Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' }); // prettier-ignore
    if (trouble === 'missing' && id.charCodeAt(4) % 3 === damaged) throw Object.assign(new Error('it is gone'), { code: 'BLOB_NOT_FOUND' }); // prettier-ignore
  };
  return controller.signal;
}

function calm(): void {
  seam.state.before = undefined;
  beforePack = undefined;
}

function usedBytes(path: string): number {
  const { blocks, bfree, bsize } = fs.statfsSync(path);
  return (blocks - bfree) * bsize;
}

/** Entries without how many names they have. */
const plain = (tree: OddTree): readonly unknown[] =>
  [...tree].map(([path, { type, content, attributes }]) => [path, type, content, attributes]);

/** One target of ten is on a disk with little room. Its root makes more. */
async function attempt(seed: number): Promise<string[]> {
  if (seed % 10 !== 0 || !canMount) return attemptAt(seed, at(`target-${seed}`));
  const disk = mountSmallDisk(ROOM_BYTES);
  try {
    const resize = (bytes: number): void =>
      void execFileSync('mount', ['-o', `remount,size=${bytes}`, disk.path]);
    return await attemptAt(seed, join(disk.path, 'target'), resize);
  } finally {
    disk[Symbol.dispose]();
  }
}

async function attemptAt(
  seed: number,
  target: string,
  resize?: (bytes: number) => void,
): Promise<string[]> {
  const random = randomOf(seed);
  const outside = `${target}-outside`;
  const { root, tree } = snapshots[random(SNAPSHOTS)] ?? expect.fail();
  const mode = MODES[random(MODES.length)] ?? expect.fail();
  fs.mkdirSync(join(outside, 'directory'), { recursive: true });
  for (let i = 0; i < 3; i++) fs.writeFileSync(join(outside, `file-${i}`), `outside ${i}`);
  const isFrozen = random(8) === 0;
  // A target is often an older state of the snapshot.
  if (random(3) === 0) await restore(repository, root, target);
  grow(target, { random, isKept: true, outside, isFrozen });
  const before = look(target);
  resize?.(usedBytes(target) + random(LARGE_BYTES * 4));
  const around = plain(look(outside));
  const trouble = TROUBLES[random(TROUBLES.length)] ?? expect.fail();
  const faultAt = 1 + random(random(3) === 0 ? 30 : 400);
  const code = CODES[random(CODES.length)] ?? '';
  const counters = newRestoreCounters();
  const signal = prepare({ random, mode, trouble, code, faultAt });
  const error = await run(root, target, mode, { counters, signal }).then(
    () => undefined,
    (reason: unknown) => reason,
  );
  calm();
  const lines = lost(before, look(target), tree, { mode, trouble });
  const isLoose = counters.attributesNotSet.entries > 0;
  if (error === undefined && trouble !== 'kill')
    lines.push(...different(before, look(target), tree, { mode, isLoose }).map((line) => `success, but ${line}`)); // prettier-ignore
  if (isFrozen) thaw(target);
  resize?.(ROOM_BYTES);
  // A directory with names that the rules left out stays, and then nothing is removed.
  let isBlocked = false;
  const again = newRestoreCounters();
  await run(root, target, mode, { counters: again }).catch((reason: unknown) => {
    isBlocked = /in the way/.test(String(reason));
    if (!isBlocked) lines.push(String(reason));
  });
  const after = look(target);
  if (!isBlocked || !isWithin(mode)) lines.push(...different(before, after, tree, { mode }));
  if (again.attributesNotSet.entries > 0) lines.push(JSON.stringify(again.attributesNotSet));
  if (!isDeepStrictEqual(plain(look(outside)), around))
    lines.push('something outside of the target has changed');
  fs.rmSync(target, { recursive: true });
  fs.rmSync(outside, { recursive: true });
  return lines.map((line) => `seed ${seed} (${mode}, ${trouble} ${code} at ${faultAt}): ${line}`);
}

describe.each(['exchange', 'two renames'])('a file that gives way to a directory, by %s', (way) => {
  const content = 'the only copy';
  let root: DirectoryEntry;
  beforeAll(async () => {
    const source = at(`gives-way-${way}`);
    fs.mkdirSync(join(source, 'entry', 'below'), { recursive: true });
    fs.writeFileSync(join(source, 'entry', 'file'), 'new');
    root = (await backUp(repository, source)).rootEntry;
  });

  it('is there, whole, after a kill at any call, and the next restore completes it', async () => {
    const calls = posix() as { exchange: unknown };
    const { exchange } = calls;
    if (way !== 'exchange') calls.exchange = () => false;
    try {
      let isDone = false;
      for (let faultAt = 1; !isDone && faultAt < 200; faultAt++) {
        const target = at(`target-${way}-${faultAt}`);
        fs.mkdirSync(target);
        fs.writeFileSync(join(target, 'entry'), content);
        const kill = { random: randomOf(1), mode: 'in-place', trouble: 'kill', code: '' } as const;
        const signal = prepare({ ...kill, faultAt });
        isDone = await run(root, target, 'in-place', { signal }).then(
          () => true,
          () => false,
        );
        calm();
        const files = [...look(target)].filter(([, { content: found }]) => found.includes(content));
        const isNew = fs.statSync(join(target, 'entry'), { throwIfNoEntry: false })?.isDirectory();
        const isAside = way !== 'exchange' && files.some(([path]) => isTemporary(path));
        const isOld = files.some(([path]) => path === 'entry');
        expect([faultAt, isOld || isNew === true || isAside]).toEqual([faultAt, true]);
        await run(root, target, 'in-place');
        expect(fs.readdirSync(target)).toEqual(['entry']);
        expect(fs.readFileSync(join(target, 'entry', 'file'), 'utf8')).toBe('new');
      }
      expect(isDone).toBe(true);
    } finally {
      calls.exchange = exchange;
    }
  });

  it('stays if the directory cannot take its place', async () => {
    const target = at(`target-refused-${way}`);
    fs.mkdirSync(target);
    fs.writeFileSync(join(target, 'entry'), content);
    const calls = posix() as { exchange: unknown };
    const { exchange } = calls;
    if (way !== 'exchange') calls.exchange = () => false;
    let isRefused = false;
    seam.state.before = (name) => {
      // The last step: removing the old file, or moving the directory to its name.
      if (isRefused || !['unlink', 'rename'].includes(name)) return;
      if (way !== 'exchange' && name === 'rename' && fs.existsSync(join(target, 'entry'))) return;
      isRefused = true;
      throw Object.assign(new Error(`EIO: ${name}`), { code: 'EIO', syscall: name });
    };
    try {
      await expect(run(root, target, 'in-place')).rejects.toThrow();
      calm();
      expect(isRefused).toBe(true);
      expect(fs.readFileSync(join(target, 'entry'), 'utf8')).toBe(content);
      expect(fs.readdirSync(target)).toEqual(['entry']);
    } finally {
      calm();
      calls.exchange = exchange;
    }
  });
});

const isSoak = process.env['SOAK'] === '1';
const first = Number(process.env['SEED'] ?? 1);
const seeds = Number(process.env['SEEDS'] ?? (isSoak ? 5000 : 100));

it(
  'trouble at any system call leaves each entry old or new, and the next run completes it',
  { timeout: isSoak ? 3_600_000 : 120_000 },
  async () => {
    const faults: string[] = [];
    for (let seed = first; seed < first + seeds; seed++) faults.push(...(await attempt(seed)));
    expect(faults).toEqual([]);
  },
);
