import { execFileSync, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { cgroupMemoryBytes } from '../../src/config/index.ts';
import { parseBytes } from '../../src/base/index.ts';
import { MEMORY_BYTES_MIN, planBytes, planMemory } from '../../src/repository/index.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { installPackage } from '../support/package.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const MIB = 2 ** 20;
const GROUPS = '/sys/fs/cgroup';

const reading =
  (files: Record<string, string>) =>
  (path: string): string | undefined =>
    files[path];

describe('the limit of the container', () => {
  it('version 2: the least on the way up counts', () => {
    const files = {
      '/proc/self/cgroup': '0::/kubepods/pod1/c1\n',
      [`${GROUPS}/kubepods/pod1/c1/memory.max`]: 'max\n',
      [`${GROUPS}/kubepods/pod1/memory.max`]: '536870912\n',
      [`${GROUPS}/kubepods/memory.max`]: '1073741824\n',
    };
    expect(cgroupMemoryBytes(reading(files))).toBe(512 * MIB);
  });

  it('version 1: the mount is the container where the path is not in it', () => {
    const files = {
      '/proc/self/cgroup': '3:cpu:/x\n4:memory:/docker/abc\n',
      [`${GROUPS}/memory/memory.limit_in_bytes`]: '268435456\n',
    };
    expect(cgroupMemoryBytes(reading(files))).toBe(256 * MIB);
  });

  it('none at all, and what says "unlimited", are no limit', () => {
    expect(cgroupMemoryBytes(reading({}))).toBeUndefined();
    const files = {
      '/proc/self/cgroup': '4:memory:/\n',
      [`${GROUPS}/memory/memory.limit_in_bytes`]: '9223372036854771712\n',
    };
    expect(cgroupMemoryBytes(reading(files))).toBeUndefined();
  });
});

it.each([
  ['256MiB', 256 * MIB],
  ['1GiB', 1024 * MIB],
  ['500MB', 500_000_000],
  ['64k', 64_000],
  ['1048576', MIB],
  ['a lot', undefined],
  ['-5MiB', undefined],
])('%s is %s bytes', (text, bytes) => {
  expect(parseBytes(text)).toBe(bytes);
});

it('a budget is shared out within its bounds, and one too small is refused', () => {
  for (const threads of [1, 2, 8]) {
    let before = planMemory(MEMORY_BYTES_MIN, threads);
    for (let mib = MEMORY_BYTES_MIN / MIB; mib <= 4096; mib += 32) {
      const plan = planMemory(mib * MIB, threads);
      expect(plan.slabCount).toBeGreaterThanOrEqual(7);
      expect(plan.dataLanes).toBeGreaterThanOrEqual(1);
      expect(plan.dataLanes).toBeLessThanOrEqual(threads);
      expect(plan.dataLanes + plan.packsInFlight).toBeGreaterThanOrEqual(
        before.dataLanes + before.packsInFlight,
      );
      before = plan;
    }
  }
  expect(() => planMemory(100 * MIB, 2)).toThrow(/too low; at least 160/);
});

it.each([
  [208, false, true],
  [256, false, false],
  [240, true, true],
  [256, true, false],
])('%i MiB, in a cloud: %s, have no room for a thread more: %s', (mib, isRemote, isTight) => {
  expect(planMemory(mib * MIB, 2, isRemote).isTight).toBe(isTight);
});

/**
 * Memory of the smallest plan, for a local or remote storage. A smaller limit works too, but full
 * use exceeds it.
 */
const LEAST_BYTES = { local: 204 * MIB, remote: 236 * MIB };

it.each(['local', 'remote'] as const)(
  'the plan fits into its budget for 1 to 256 CPUs, %s storage',
  (kind) => {
    const isRemote = kind === 'remote';
    for (let mib = MEMORY_BYTES_MIN / MIB; mib <= 4096; mib += mib < 300 ? 4 : 64) {
      let before = 0;
      for (let cpus = 1; cpus <= 256; cpus++) {
        const plan = planMemory(mib * MIB, cpus, isRemote);
        const text = `${mib} MiB, ${cpus} CPUs: ${JSON.stringify(plan)}`;
        const bytes = planBytes(plan, isRemote);
        expect(bytes, text).toBeLessThanOrEqual(Math.max(mib * MIB, LEAST_BYTES[kind]));
        expect(plan.threads, text).toBeGreaterThanOrEqual(1);
        expect(plan.threads, text).toBeLessThanOrEqual(Math.min(cpus, 64));
        // More CPUs never mean fewer threads, and the threads have enough slabs and lanes.
        expect(plan.threads, text).toBeGreaterThanOrEqual(before);
        expect(plan.slabCount, text).toBeGreaterThanOrEqual(Math.max(7, plan.threads + 3));
        expect(plan.dataLanes * 4, text).toBeGreaterThanOrEqual(plan.threads);
        expect(plan.dataLanes, text).toBeLessThanOrEqual(plan.threads);
        before = plan.threads;
      }
    }
    expect(planMemory(256 * MIB, 2, isRemote).threads).toBe(2);
    expect(planMemory(4096 * MIB, 256, isRemote).threads).toBe(64);
    expect(planBytes(planMemory(MEMORY_BYTES_MIN, 256, isRemote), isRemote)).toBe(
      LEAST_BYTES[kind],
    );
  },
);

describe('on a machine with 64 CPUs', () => {
  const work = tempDirectory('many-cores');
  const at = (name: string): string => join(work, name);
  afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

  it.each([
    ['as many threads as 256 MiB carry', planMemory(256 * MIB, 64)],
    ['64 threads all the same', { ...planMemory(256 * MIB, 64), threads: 64 }],
  ])(
    'a tree goes in and comes back: %s',
    async (_name, { threads, ...memory }) => {
      const name = String(threads);
      makeTree(at(`tree-${name}`), name);
      await createTest(at(`repo-${name}`));
      await using repository = await openTest(at(`repo-${name}`), { threads, memory });
      expect(repository.dataPath?.pool.threads).toBe(threads);
      const { rootEntry } = await backUp(repository, at(`tree-${name}`));
      await restore(repository, rootEntry, at(`out-${name}`));
      assertSameTree(at(`tree-${name}`), at(`out-${name}`));
      // 64 threads take long to start on few cores.
    },
    400_000,
  );
});

const canGroup = ((): boolean => {
  if (process.getuid?.() !== 0) return false;
  const group = `${GROUPS}/memory/longshore-probe`;
  try {
    fs.mkdirSync(group);
    fs.rmdirSync(group);
    return fs.existsSync(`${GROUPS}/memory/memory.limit_in_bytes`);
  } catch {
    return false;
  }
})();

/**
 * The least that the plan keeps to when all of it is in use at once, as on a busy machine: below it
 * luck decides.
 */
const GROUP_BYTES = LEAST_BYTES.local + 4 * MIB;

describe.skipIf(!canGroup)('in a control group of 208 MiB', () => {
  const work = tempDirectory('memory');
  const group = `${GROUPS}/memory/longshore-${process.pid}`;
  const at = (name: string): string => join(work, name);
  afterAll(() => {
    fs.rmSync(work, { recursive: true, force: true });
    fs.rmdirSync(group);
  });
  const longshore = (...parameters: string[]): string => {
    const script = 'echo $$ > "$0/cgroup.procs"; exec "$@"';
    const { status, signal, stdout, stderr } = spawnSync(
      'bash',
      ['-c', script, group, at('package/bin/longshore'), ...parameters],
      { env: { ...process.env, LONGSHORE_PASSWORD: 'secret' }, encoding: 'utf8' },
    );
    const command = parameters.slice(0, 2).join(' ');
    expect({ status, signal, stderr }, command).toEqual({ status: 0, signal: null, stderr: '' });
    return stdout;
  };

  it('large and small files go in and come back', () => {
    installPackage(at('package'));
    fs.mkdirSync(group);
    fs.writeFileSync(`${group}/memory.limit_in_bytes`, String(GROUP_BYTES));
    makeTree(at('tree'), 'memory');
    execFileSync('bash', ['-c', `head -c 500000000 /dev/urandom > '${at('tree')}/large'`]);
    for (let i = 0; i < 5000; i++) {
      fs.mkdirSync(at(`tree/files/${i % 50}`), { recursive: true });
      fs.writeFileSync(at(`tree/files/${i % 50}/${i}`), String(i).repeat(1000));
    }
    const flags = ['--repo', at('repo'), '--memory-limit', String(GROUP_BYTES)];
    longshore('repository', 'create', ...flags);
    const created = longshore('snapshot', 'create', at('tree'), ...flags, '--json');
    const { id } = JSON.parse(created) as { id: string };
    longshore('snapshot', 'create', at('tree'), ...flags);
    longshore('snapshot', 'restore', id, at('out'), ...flags);
    longshore('repository', 'verify', '--read-all', ...flags);
    assertSameTree(at('tree'), at('out'));
    // Five starts of the program, and 2 GB read or written.
  }, 600_000);
});
