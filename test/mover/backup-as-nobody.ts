/**
 * `node backup-as-nobody.ts FOLDER`: backs FOLDER/volume up into FOLDER/repo, and prints how that
 * went.
 */
import { join } from 'node:path';
import { silentLogger } from '../../src/base/index.ts';
import { backupVolume } from '../../src/mover/index.ts';
import { listSnapshots } from '../../src/snapshot/index.ts';
import { createTest, openTest } from '../support/repositories.ts';

const folder = process.argv[2] ?? '';
await createTest(join(folder, 'repo'));
await using repository = await openTest(join(folder, 'repo'));
let error: { message?: string; code?: string } = {};
try {
  await backupVolume({
    repository,
    path: join(folder, 'volume'),
    isBlock: false,
    logger: silentLogger,
    signal: new AbortController().signal,
    config: {},
    onProgress: () => undefined,
    progressIntervalMs: 1000,
    stallMs: 60_000,
    sourceNamespace: 'app',
    sourcePvc: 'data',
    operationId: '',
    uid: 'nobody',
  });
} catch (thrown) {
  error = thrown as Error;
}
const snapshots = (await listSnapshots(repository)).length;
console.log(JSON.stringify({ message: error.message, code: error.code, snapshots }));
