import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import type { BlobStorage } from '../../src/blob/index.ts';
import { writeOnce } from '../../src/blob/wrappers/write-once.ts';
import { loadSchedule, runMaintenance } from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { atClock } from '../support/clocked-storage.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { PutLog } from '../support/put-log.ts';
import { backUp, createTest, openTest, PASSWORD } from '../support/repositories.ts';

const work = tempDirectory('write-once');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

describe('a repository in a location that is written once', () => {
  it('puts no blob twice over backups and maintenance, and Kopia reads it', async () => {
    const [path, tree] = [join(work, 'repository'), join(work, 'tree')];
    fs.mkdirSync(tree);
    const puts: string[] = [];
    const clock = new OffsetClock(systemClock, -200n * HOUR_NS);
    const timed = atClock(path, clock);
    const wrap = (storage: BlobStorage): BlobStorage => writeOnce(new PutLog(timed(storage), puts));
    await createTest(path, {}, { wrap, clock });
    let runs = 0;
    for (let day = 0; day < 4; day++) {
      clock.offsetNs += 30n * HOUR_NS;
      await using repository = await openTest(path, { wrap, clock });
      fs.writeFileSync(join(tree, `file-${day}`), noise(`day ${day}`, 300_000));
      await backUp(repository, tree);
      await repository.flush();
      const report = await runMaintenance(repository, {
        mode: 'full',
        safety: 'none',
        force: false,
        dryRun: false,
        collectGarbage,
        signal: new AbortController().signal,
        logger: silentLogger,
      });
      expect(report.mode).toBe('full');
      const { runs: noted, nextFullNs } = await loadSchedule(repository);
      expect(nextFullNs).toBeGreaterThan(clock.nowNs());
      const count = [...noted.values()].flat().length;
      expect(count).toBeGreaterThan(runs);
      runs = count;
    }
    expect(puts.filter((id) => id.startsWith('kopia.maintenance-')).length).toBeGreaterThan(8);
    expect(puts.filter((id, at) => puts.indexOf(id) !== at)).toEqual([]);
    if (hasKopia) new Kopia(PASSWORD).connect(path).verifyAll();
  }, 60_000);
});
