import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import {
  defaultParameters,
  loadSchedule,
  putMaintenanceParameters,
  runMaintenance,
} from '../../src/repository/index.ts';
import { loadMaintenanceParameters } from '../../src/repository/maintenance/parameters.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { CLIENT, createTest, openTest, PASSWORD } from '../support/repositories.ts';

const work = tempDirectory('long-durations');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

/** From 104 days on nanoseconds do not fit a double. */
const HALF_YEAR = '4320h';
const HALF_YEAR_NS = 4320n * 3_600_000_000_000n;
/** The longest of Go's. */
const LONGEST_NS = 2n ** 63n - 1n;

it('maintenance runs with parameters of any length, and writes them back digit by digit', async () => {
  const repo = join(work, 'parameters');
  await createTest(repo);
  await using repository = await openTest(repo);
  const defaults = defaultParameters(CLIENT);
  await putMaintenanceParameters(repository, {
    ...defaults,
    owner: '',
    full: { enabled: true, interval: HALF_YEAR_NS },
    logRetention: { ...defaults.logRetention, maxAge: LONGEST_NS },
  });
  await repository.flush();
  const report = await runMaintenance(repository, {
    mode: 'auto',
    safety: 'full',
    force: false,
    dryRun: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage,
  });
  expect(report.mode).toBe('full');
  // The claim has written the parameters again.
  expect(await loadMaintenanceParameters(repository)).toMatchObject({
    owner: 'tester@testhost',
    full: { interval: HALF_YEAR_NS },
    logRetention: { maxAge: LONGEST_NS },
  });
  const { nextFullNs, nextQuickNs } = await loadSchedule(repository);
  expect(nextFullNs - nextQuickNs).toBe(HALF_YEAR_NS - BigInt(defaults.quick.interval));
});

it.skipIf(!hasKopia).each(['--epoch-min-duration', '--epoch-cleanup-safety-margin'])(
  'a repository opens whose %s the real Kopia has set to half a year',
  async (parameter) => {
    const repo = join(work, parameter);
    await createTest(repo);
    const kopia = new Kopia(PASSWORD).connect(repo);
    kopia.run('repository', 'set-parameters', `${parameter}=${HALF_YEAR}`);
    await using repository = await openTest(repo);
    const { epochParameters } = repository.format.parameters;
    expect(Object.values(epochParameters)).toContain(Number(HALF_YEAR_NS));
  },
);
