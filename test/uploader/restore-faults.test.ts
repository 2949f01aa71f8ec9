import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { posix, silentLogger } from '../../src/base/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { type DirectoryEntry, loadPolicyTree } from '../../src/snapshot/index.ts';
import { restoreTreeInPlace } from '../../src/uploader/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, CLIENT, createTest, openTest, restore } from '../support/repositories.ts';

/**
 * A random target, a random snapshot, and a fault or a kill at a random system call of the restore: every file is the old one or
 * the new one, whole. The calls are changed before anything imports them.
 */
const seam = await vi.hoisted(async () => {
  type Call = (...given: unknown[]) => unknown;
  const { default: functions } = await import('node:fs');
  const { syncBuiltinESMExports } = await import('node:module');
  /** Called before each system call that is not about the repository. It may throw. */
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
const LARGE_BYTES = 300_000;
const NAMES = ['a', 'b', 'c', 'd', 'keep-1', 'keep-2'];
const MODES = ['always', 'if-different', 'never', 'in-place', 'remove-first'] as const;
const CODES = ['EIO', 'ENOSPC', 'EACCES', 'EPERM', 'EROFS', 'EDQUOT', 'EINTR'];
type Tree = ReadonlyMap<string, string>;
type Random = (below: number) => number;

let repository: Repository;
const snapshots: { root: DirectoryEntry; tree: Tree }[] = [];

const randomOf = (seed: number): Random => {
  let x = (seed * 2_654_435_761 + 1) >>> 0;
  return (below) => {
    x ^= x << 13;
    x >>>= 0;
    x ^= x >>> 17;
    x ^= x << 5;
    x >>>= 0;
    return x % below;
  };
};

/** `isKept`: with names that the rules leave out. */
function grow(path: string, random: Random, isKept: boolean, depth = 0): void {
  fs.mkdirSync(path, { recursive: true });
  for (const name of NAMES) {
    if (!isKept && name.startsWith('keep')) continue;
    const here = join(path, name);
    const kind = random(10);
    if (kind < 4) fs.writeFileSync(here, `${random(1e6)}`.repeat(1 + random(50)));
    else if (kind === 4) fs.writeFileSync(here, noise(String(random(1e6)), LARGE_BYTES));
    else if (kind === 5) fs.symlinkSync(String(random(100)), here);
    else if (kind < 8 && depth < 2) grow(here, random, isKept, depth + 1);
    if (kind < 5) fs.utimesSync(here, 1e9, 1e9 + random(1e6));
  }
}

function look(root: string): Tree {
  const found = new Map<string, string>();
  for (const path of fs.readdirSync(root, { recursive: true, encoding: 'utf8' })) {
    const here = join(root, path);
    const stat = fs.lstatSync(here);
    if (stat.isDirectory()) found.set(path, 'directory');
    else if (stat.isSymbolicLink()) found.set(path, `link ${fs.readlinkSync(here)}`);
    else found.set(path, `file ${fs.readFileSync(here, 'latin1')}`);
  }
  return found;
}

beforeAll(async () => {
  seam.wrap(posix() as never, 'renameNew', 'sync');
  seam.wrap(posix() as never, 'setDescriptorTime', 'sync');
  seam.wrap(posix() as never, 'setPinnedTime', 'sync');
  seam.state.repo = at('repo');
  await createTest(at('repo'), { splitter: 'FIXED-128K' });
  repository = await openTest(at('repo'));
  for (let i = 0; i < SNAPSHOTS; i++) {
    grow(at(`source-${i}`), randomOf(1000 + i), false);
    fs.writeFileSync(at(`source-${i}`, '.kopiaignore'), 'keep-*\n');
    const { rootEntry } = await backUp(repository, at(`source-${i}`));
    snapshots.push({ root: rootEntry, tree: look(at(`source-${i}`)) });
  }
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

const isTemporary = (path: string): boolean => /(^|\/)\.longshore-restore-[0-9a-f]{16}$/.test(path);
const isKept = (path: string): boolean => /(^|\/)keep-\d/.test(path);
const isLarge = (content = ''): boolean => content.length > LARGE_BYTES;

async function run(
  root: DirectoryEntry,
  target: string,
  mode: (typeof MODES)[number],
): Promise<void> {
  if (mode !== 'in-place' && mode !== 'remove-first') {
    await restore(repository, root, target, { overwrite: mode });
    return;
  }
  const source = { host: CLIENT.hostname, userName: CLIENT.username, path: '/none' };
  const policies = await loadPolicyTree(repository, source);
  await restoreTreeInPlace(repository, root, target, {
    ...{ logger: silentLogger, signal: new AbortController().signal, ignoreOpenFiles: true },
    removeFirst: mode === 'remove-first',
    excluded: { policies, root, path: '' },
  });
}

/** Each line is a file that is neither the old one nor the new one. */
function lost(before: Tree, after: Tree, wanted: Tree, isInPlace: boolean): string[] {
  const lines: string[] = [];
  for (const [path, old] of before) {
    if (old === 'directory') continue;
    const [now, replacement] = [after.get(path), wanted.get(path)];
    if (now === old || (now !== undefined && now === replacement)) continue;
    // Files of several contents are patched: the next run completes them.
    if (isInPlace && isLarge(old) && isLarge(replacement)) continue;
    const mayGo = isInPlace && !isKept(path);
    // A directory takes the place of a file between two calls.
    if (now === undefined && mayGo && !replacement?.startsWith('file')) continue;
    lines.push(`${path}: ${now?.slice(0, 40)} is neither ${old.slice(0, 40)} nor ${replacement?.slice(0, 40)}`); // prettier-ignore
  }
  for (const [path, now] of after) {
    if (before.has(path) || isTemporary(path) || now === wanted.get(path)) continue;
    lines.push(`${path}: ${now.slice(0, 40)} is new, and not whole`);
  }
  return lines;
}

/** The next run completes the restore, as far as nothing is in the way of another type. */
function unfinished(before: Tree, after: Tree, wanted: Tree, mode: string): string[] {
  const lines: string[] = [];
  for (const path of after.keys()) {
    if (isTemporary(path)) lines.push(`${path} is left`);
  }
  for (const [path, old] of before) {
    if (isKept(path) && old !== 'directory' && after.get(path) !== old)
      lines.push(`${path} is lost`);
  }
  const isBlocked = (path: string): boolean => {
    const parts = path.split('/');
    return parts.some((_, i) => {
      const above = parts.slice(0, i + 1).join('/');
      const [old, replacement] = [before.get(above), wanted.get(above)];
      return old !== undefined && (old === 'directory') !== (replacement === 'directory');
    });
  };
  for (const [path, content] of wanted) {
    if (isBlocked(path) || after.get(path) === content) continue;
    if (mode === 'never' && before.get(path) === after.get(path)) continue;
    lines.push(`${path} is not restored`);
  }
  return lines;
}

/** Entries that a restore in place should have removed: all but names that the rules left out, and the directories above these. */
const extra = (after: Tree, wanted: Tree): string[] =>
  [...after.keys()]
    .filter((path) => !wanted.has(path))
    .filter((path) => ![...after.keys()].some((each) => each.startsWith(path) && isKept(each)))
    .map((path) => `${path} is extra`);

async function attempt(seed: number): Promise<string[]> {
  const random = randomOf(seed);
  const target = at(`target-${seed}`);
  const { root, tree } = snapshots[random(SNAPSHOTS)] ?? expect.fail();
  const mode = MODES[random(MODES.length)] ?? expect.fail();
  grow(target, random, true);
  const before = look(target);
  const [isKill, faultAt] = [random(2) === 0, 1 + random(random(3) === 0 ? 30 : 250)];
  const code = CODES[random(CODES.length)] ?? '';
  let calls = 0;
  seam.state.before = (name) => {
    calls++;
    if (calls < faultAt || (calls > faultAt && !isKill)) return;
    seam.state.isLast = isKill && calls === faultAt;
    throw Object.assign(new Error(`${isKill ? 'killed' : code}: ${name}`), {
      code: isKill ? 'EKILLED' : code,
      syscall: name,
    });
  };
  await run(root, target, mode).catch(() => undefined);
  seam.state.before = undefined;
  const isInPlace = mode === 'in-place' || mode === 'remove-first';
  const lines = lost(before, look(target), tree, isInPlace);
  // A directory with names that the rules left out stays, and then nothing is removed.
  let isBlocked = false;
  await run(root, target, mode).catch((error: unknown) => {
    isBlocked = /in the way/.test(String(error));
    if (!isBlocked) lines.push(String(error));
  });
  const after = look(target);
  lines.push(...unfinished(before, after, tree, mode));
  if (isInPlace && !isBlocked) lines.push(...extra(after, tree));
  fs.rmSync(target, { recursive: true });
  return lines.map((line) => `seed ${seed} (${mode}, ${isKill ? 'kill' : code} at ${faultAt}): ${line}`); // prettier-ignore
}

const isSoak = process.env['SOAK'] === '1';
const first = Number(process.env['SEED'] ?? 1);
const seeds = Number(process.env['SEEDS'] ?? (isSoak ? 5000 : 150));

it(
  'a fault or a kill at any system call leaves each file old or new, and the next run completes it',
  { timeout: isSoak ? 3_600_000 : 120_000 },
  async () => {
    const faults: string[] = [];
    for (let seed = first; seed < first + seeds; seed++) faults.push(...(await attempt(seed)));
    expect(faults).toEqual([]);
  },
);
