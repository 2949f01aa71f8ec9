import { execFileSync, spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import { type MaintenanceOptions, runMaintenance } from '../../src/repository/index.ts';
import {
  listSnapshots,
  planGarbageCollection as collectGarbage,
  verifyTrees,
} from '../../src/snapshot/index.ts';
import { atClock } from '../support/clocked-storage.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';
import { type Mode, runStages, stageOf } from './stages.ts';

const work = tempDirectory('kill');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const VICTIM = new URL('victim.ts', import.meta.url).pathname;
const DAY_NS = 24n * HOUR_NS;
const MAINTENANCE: MaintenanceOptions = {
  mode: 'full',
  safety: 'full',
  force: true,
  dryRun: false,
  signal: new AbortController().signal,
  logger: silentLogger,
  collectGarbage,
};
/** 200 kills in the long run, a tenth here. */
const KILLS = process.env.SOAK === '1' ? 200 : 20;

/** Dies at an event, in a process of its own. Returns the stage that it died in. */
function victim(
  mode: Mode,
  repo: string,
  tree: string,
  event: number | string,
  when: string,
): string {
  const parameters = [VICTIM, mode, repo, tree, String(event), when];
  const { stdout, stderr, signal } = spawnSync(process.execPath, parameters, { encoding: 'utf8' });
  expect(signal, stderr).toBe('SIGKILL');
  return stdout.trim();
}

/** Lives to its end, in this process. Returns the stages of all events. */
async function survivor(mode: Mode, repo: string, tree: string): Promise<string[]> {
  const stages: string[] = [];
  await runStages(mode, repo, tree, (operation, id, when) => {
    if (when === 'before') stages.push(stageOf(operation, id));
  });
  return stages;
}

/**
 * A repository with two snapshots and the garbage of a third, whose epochs are due: the first for
 * its compaction, the third for its end.
 */
async function prepare(repo: string): Promise<void> {
  await createTest(repo);
  const clock = new OffsetClock(systemClock);
  clock.offsetNs = -8n * DAY_NS;
  await using repository = await openTest(repo, { clock, wrap: atClock(repo, clock) });
  const small = at('small');
  fs.mkdirSync(small);
  for (let epoch = 0; epoch < 3; epoch++) {
    for (let i = 0; i < 22; i++) {
      clock.offsetNs += 2n * HOUR_NS;
      fs.writeFileSync(join(small, 'file'), `${epoch}-${i}`);
      await backUp(repository, small);
    }
    if (epoch < 2) await runMaintenance(repository, MAINTENANCE);
  }
  clock.offsetNs = 0n;
  for (const name of ['earlier', 'garbage', 'later']) {
    const tree = at(name);
    fs.mkdirSync(tree, { recursive: true });
    for (let i = 0; i < 12; i++)
      fs.writeFileSync(join(tree, `f${i}`), noise(`${name}-${i}`, 150_000));
    const { id } = await backUp(repository, tree);
    if (name === 'garbage') repository.manifests.delete(id);
  }
  await repository.flush();
}

/**
 * Events to die at: each stage in turn, spread over its occurrences, before or after it took
 * effect.
 */
function placeKills(
  events: readonly string[],
  count: number,
): { event: number; when: 'before' | 'after' }[] {
  const stages = new Map<string, number[]>();
  events.forEach((stage, event) => stages.set(stage, [...(stages.get(stage) ?? []), event]));
  const occurrences = [...stages.values()];
  const rounds = Math.ceil(count / occurrences.length);
  return Array.from({ length: count }, (_, i) => {
    const own = occurrences[i % occurrences.length] ?? [];
    const round = Math.floor(i / occurrences.length);
    const event = own[Math.floor(((round + 0.5) * own.length) / rounds)] ?? 0;
    return { event, when: (i + round) % 2 === 0 ? 'before' : 'after' };
  });
}

async function assertSound(repo: string): Promise<void> {
  await using repository = await openTest(repo);
  const snapshots = await listSnapshots(repository);
  const roots = snapshots.flatMap(({ rootEntry }) => rootEntry ?? []);
  const options = { readAll: true, signal: new AbortController().signal };
  expect((await verifyTrees(repository, roots, options)).problems).toEqual([]);
  for (const name of ['earlier', 'later']) {
    const snapshot = snapshots.find(({ source }) => source.path === at(name));
    if (!snapshot?.rootEntry) throw new Error(`the snapshot of ${name} is gone`);
    await restore(repository, snapshot.rootEntry, at('out'), { overwrite: 'always' });
    assertSameTree(at(name), at('out'));
    fs.rmSync(at('out'), { recursive: true });
  }
  if (hasKopia) new Kopia(PASSWORD).connect(repo).verifyAll();
}

it('a process killed at any stage loses nothing that was there, and the next run succeeds', async () => {
  const tree = at('tree');
  fs.mkdirSync(tree);
  for (let i = 0; i < 24; i++) {
    fs.mkdirSync(join(tree, `d${i % 6}`), { recursive: true });
    fs.writeFileSync(join(tree, `d${i % 6}`, `f${i}`), noise(`victim-${i}`, 900_000));
  }
  await prepare(at('base'));
  const histogram = new Map<string, number>();
  for (const mode of ['upload', 'maintain'] as const) {
    fs.cpSync(at('base'), at('count'), { recursive: true });
    const events = await survivor(mode, at('count'), tree);
    fs.rmSync(at('count'), { recursive: true });
    expect(events.length).toBeGreaterThan(10);
    // Checkpoints have no fixed place: use only events that each run reaches.
    const reached = mode === 'upload' ? events.slice(0, Math.floor(events.length * 0.75)) : events;
    for (const { event, when } of placeKills(reached, KILLS / 2)) {
      fs.cpSync(at('base'), at('victim'), { recursive: true });
      const stage = `${mode}: ${victim(mode, at('victim'), tree, event, when)}`;
      histogram.set(stage, (histogram.get(stage) ?? 0) + 1);
      await assertSound(at('victim'));
      await survivor(mode, at('victim'), tree);
      await assertSound(at('victim'));
      fs.rmSync(at('victim'), { recursive: true });
    }
  }
  console.log(
    ['kills by stage:', ...[...histogram].map(([stage, n]) => `  ${n} ${stage}`)].join('\n'),
  );
}, 1_800_000);

it('after a kill at 90 % the next run stores little again', async () => {
  const [repo, tree] = [at('late-repo'), at('late-tree')];
  fs.mkdirSync(tree);
  // A kill loses the packs that are being filled or put, some 100 MB. The long run has 4 GiB.
  const isLong = process.env.SOAK === '1';
  const bytes = isLong ? 4 * 2 ** 30 : 700_000_000;
  execFileSync('bash', ['-c', `head -c ${bytes} /dev/urandom > '${join(tree, 'volume')}'`]);
  await createTest(repo);
  victim('volume', repo, tree, `b${bytes * 0.9}`, 'before');
  await using repository = await openTest(repo, { threads: true });
  const { counters } = await backUp(repository, tree);
  expect(counters.bytesRead).toBe(bytes);
  console.log(`stored again or first: ${((100 * counters.bytesNew) / bytes).toFixed(1)} %`);
  expect(counters.bytesNew).toBeLessThan(bytes * (isLong ? 0.15 : 0.45));
}, 600_000);
