import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { Secret } from '../../src/base/index.ts';
import { openStorage } from '../../src/blob/index.ts';
import { openRepository } from '../../src/repository/index.ts';
import { getSnapshot } from '../../src/snapshot/index.ts';
import { createInProcessPool } from '../../src/workers/index.ts';
import { expectedOf, FIXTURES, type SourceEntry } from '../support/fixtures.ts';
import { goldenPath } from '../support/golden.ts';
import { tempDirectory } from '../support/kopia.ts';
import { restore } from '../support/repositories.ts';

const work = tempDirectory('fixtures');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

function describeEntry(root: string, entry: SourceEntry): object {
  const raw = entry.pathBase64 === undefined ? undefined : Buffer.from(entry.pathBase64, 'base64');
  // Names that are not UTF-8 come back with the replacement character.
  const path = join(root, raw ? raw.toString('utf8') : entry.path);
  const stat = fs.lstatSync(path, { bigint: true });
  const common = {
    type: stat.isDirectory() ? 'd' : stat.isSymbolicLink() ? 'l' : 'f',
    mode: (Number(stat.mode) & 0o7777).toString(8),
    mtimeNs: String(stat.mtimeNs),
    ...(process.getuid?.() === 0 && { uid: Number(stat.uid), gid: Number(stat.gid) }),
  };
  if (!stat.isFile()) return common;
  const sha256 = createHash('sha256').update(fs.readFileSync(path)).digest('hex');
  return { ...common, size: Number(stat.size), sha256 };
}

function expectedEntry(entry: SourceEntry): object {
  const type = entry.type === 's' || entry.type === 'l' ? 'l' : entry.type;
  return {
    type,
    mode: entry.mode,
    mtimeNs: entry.mtimeNs,
    ...(process.getuid?.() === 0 && { uid: entry.uid, gid: entry.gid }),
    ...(type === 'f' && { size: entry.size, sha256: entry.sha256 }),
  };
}

describe.each(FIXTURES.filter((name) => name !== 'ecc'))('fixture %s', (name) => {
  it('every snapshot comes back as the source was: bytes, modes, owners, times', async () => {
    const { password, username, hostname, snapshotsMade, sourceStates, snapshotList } =
      expectedOf(name);
    await using storage = await openStorage(goldenPath(`${name}/repo`));
    await using repository = await openRepository({
      storage,
      password: new Secret(password),
      client: { username, hostname },
      dataPath: {
        factory: createInProcessPool,
        threads: 2,
        memory: { slabCount: 12, dataLanes: 2, packsInFlight: 2 },
      },
    });
    const made = snapshotsMade.filter(({ snapshotID }) =>
      snapshotList.some(({ id }) => id === snapshotID),
    );
    expect(made.length).toBeGreaterThan(0);
    // The fixture with 70 snapshots has few different states.
    const different = [...new Map(made.map((each) => [each.sourceState, each])).values()];
    for (const { snapshotID, sourceState } of different) {
      const { rootEntry, incomplete } = await getSnapshot(repository, snapshotID);
      if (!rootEntry) throw new Error('no root');
      const out = join(work, `${name}-${sourceState}`);
      await restore(repository, rootEntry, out);
      for (const entry of sourceStates[sourceState] ?? []) {
        if (entry.type === 'other') continue;
        if (incomplete !== undefined && !fs.existsSync(join(out, entry.path))) continue;
        expect(describeEntry(out, entry), `${sourceState}: ${entry.path}`).toEqual(
          expectedEntry(entry),
        );
      }
    }
  });
});
