import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { volumeSource } from '../../src/mover/snapshot-source.ts';
import { VolumeTotal } from '../../src/mover/volume-total.ts';
import type { Repository } from '../../src/repository/index.ts';
import { createSnapshot, EstimateAhead, newUploadCounters } from '../../src/uploader/index.ts';
import { createTest, openTest } from '../support/repositories.ts';

/** The size of a volume's data during its upload. */
describe('the total of an upload', () => {
  const root = fs.mkdtempSync(join(tmpdir(), 'longshore-total-'));
  const volume = join(root, 'volume');
  const BYTES = 300 * 7;
  let repository: Repository;
  let total: VolumeTotal | undefined;
  beforeAll(async () => {
    await createTest(join(root, 'repo'));
    repository = await openTest(join(root, 'repo'), { threads: true });
    for (let i = 0; i < 300; i++) {
      fs.mkdirSync(join(volume, `d${i % 5}`), { recursive: true });
      fs.writeFileSync(join(volume, `d${i % 5}/f${i}`), '1234567');
    }
  });
  afterEach(() => {
    total?.stop();
    total?.stop();
  });
  afterAll(async () => {
    await repository.close();
    fs.rmSync(root, { recursive: true, force: true });
  });

  const source = volumeSource('app', 'total');
  const { signal } = new AbortController();
  const begin = async (more: { path?: string; isBlock?: boolean } = {}) => {
    const counters = newUploadCounters();
    const made = new VolumeTotal(counters);
    total = made;
    expect(made.bytes).toBeUndefined();
    await made.look({ repository, path: volume, isBlock: false, ...more }, source);
    return { counters, total: made };
  };

  it('is not counted where the memory does not carry a thread more', async () => {
    const tight = await openTest(join(root, 'repo'), {
      threads: true,
      memory: { slabCount: 12, dataLanes: 2, packsInFlight: 2, isTight: true },
    });
    const counters = newUploadCounters();
    const made = new VolumeTotal(counters);
    total = made;
    await made.look({ repository: tight, path: volume, isBlock: false }, source);
    const beside = new EstimateAhead({ repository, source, path: volume, counters }, 0);
    const without = new EstimateAhead({ repository: tight, source, path: volume, counters }, 0);
    await expect.poll(() => beside.report?.bytes).toBe(BYTES);
    expect(without.report).toBeUndefined();
    expect(made.bytes).toBeUndefined();
    beside.stop();
    without.stop();
    await tight.close();
  });

  it('is counted beside the first upload of a directory, and exact once all is listed', async () => {
    const { counters, total } = await begin();
    // The total is unknown. A total of 0 would give no share.
    expect(total.bytes).toBeUndefined();
    Object.assign(counters, { bytesRead: 10, bytesFound: 10 });
    expect(total.bytes).toBe(10);
    await expect.poll(() => total.bytes, { timeout: 30_000 }).toBe(BYTES);
    // There is more than was counted.
    Object.assign(counters, { bytesRead: 9000, cachedBytes: 500, bytesInHoles: 7, bytesFound: 90 });
    expect([total.doneBytes, total.bytes]).toEqual([9507, 9507]);
    // A complete listing may also lower the total.
    Object.assign(counters, { bytesRead: 90, cachedBytes: 0, bytesInHoles: 0, isListed: true });
    expect([total.doneBytes, total.bytes]).toEqual([90, 90]);
  });

  it('is 0 of a volume that is empty', async () => {
    const { counters, total } = await begin();
    counters.isListed = true;
    expect(total.bytes).toBe(0);
  });

  it('is what was found so far where nothing may be counted', async () => {
    const { counters, total } = await begin({ path: volume });
    total.stop();
    Object.assign(counters, { bytesRead: 10, bytesFound: 70 });
    expect(total.bytes).toBe(70);
  });

  it('is the size of an image', async () => {
    const path = join(root, 'image');
    fs.writeFileSync(path, Buffer.alloc(5000));
    const { total } = await begin({ path, isBlock: true });
    expect(total.bytes).toBe(5000);
  });

  it('is what the last backup had, until more is found; nothing is counted then', async () => {
    const other = join(root, 'other');
    fs.mkdirSync(other);
    fs.writeFileSync(join(other, 'a'), Buffer.alloc(1234));
    await createSnapshot(repository, other, { source, logger: silentLogger, signal });
    const { counters, total } = await begin();
    expect(total.bytes).toBe(1234);
    counters.bytesFound = 4000;
    expect(total.bytes).toBe(4000);
    counters.bytesFound = 1000;
    counters.isListed = true;
    expect(total.bytes).toBe(1000);
  });
});
