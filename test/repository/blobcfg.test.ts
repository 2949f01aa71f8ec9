import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { HOUR_NS, Secret, silentLogger, systemClock } from '../../src/base/index.ts';
import { blobId, type BlobStorage, openStorage, type PutOptions } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';
import { changePassword } from '../../src/repository/format/change-password.ts';
import { BLOBCFG_BLOB, FORMAT_BLOB, loadFormat } from '../../src/repository/format/format-blob.ts';
import { RECOVERY_COPY_PREFIX } from '../../src/repository/format/recovery-copy.ts';
import { tempDirectory } from '../support/kopia.ts';
import { createTest, openTest, PASSWORD } from '../support/repositories.ts';

/** A repository under object lock must not lose it because of a missing blob. */
const work = tempDirectory('blobcfg');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

async function withoutBlobcfg(name: string, version: 1 | 2 | 3): Promise<[string, BlobStorage]> {
  const path = join(work, name);
  await createTest(path, { version });
  const storage = await openStorage(path);
  await storage.deleteBlob(BLOBCFG_BLOB);
  return [path, storage];
}

describe('a repository without kopia.blobcfg', () => {
  it('is refused in format 3, whose makers always write it, and the error says what to do', async () => {
    const [path, storage] = await withoutBlobcfg('v3', 3);
    const failure = openTest(path);
    await expect(failure).rejects.toMatchObject({
      code: 'DAMAGED_BLOB',
      facts: { blobId: BLOBCFG_BLOB },
    });
    await expect(failure).rejects.toThrow(/whether blobs are locked; bring it back/);
    await storage.close();
  });

  it.each([1, 2] as const)(
    'opens in format %s, which is older than object lock',
    async (version) => {
      const [path, storage] = await withoutBlobcfg(`v${version}`, version);
      await using repository = await openTest(path);
      expect(repository.format.retention).toBeUndefined();
      await storage.close();
    },
  );

  it('opens when it was upgraded to format 3', async () => {
    const [path, storage] = await withoutBlobcfg('upgraded', 3);
    const poison = `n${'0'.repeat(32)}-repository_unreadable_by_this_kopia_version_upgrade_required`;
    await storage.putBlob(blobId(poison), [Buffer.from('upgraded')]);
    await using repository = await openTest(path);
    expect(repository.format.retention).toBeUndefined();
    await storage.close();
  });
});

class RecordingStorage extends ForwardingStorage {
  readonly puts: { id: string; options: PutOptions | undefined }[] = [];

  override putBlob(
    id: ReturnType<typeof blobId>,
    data: readonly Uint8Array[],
    options?: PutOptions,
  ): Promise<void> {
    this.puts.push({ id, options });
    return super.putBlob(id, data);
  }
}

it('a change of the password puts both format blobs under the retention that they name', async () => {
  const path = join(work, 'password');
  await createTest(path);
  const storage = new RecordingStorage(await openStorage(path));
  Object.defineProperty(storage, 'hasObjectLock', { value: true });
  const password = new Secret(PASSWORD);
  const warn = (): void => silentLogger.warn({}, '');
  const format = await loadFormat({ storage, password, clock: systemClock, warn });
  const retention = { mode: 'COMPLIANCE', periodNs: 48n * HOUR_NS } as const;
  await changePassword(storage, { ...format, retention }, new Secret('another'));
  const options = { retention };
  expect(storage.puts).toEqual(
    expect.arrayContaining([
      { id: BLOBCFG_BLOB, options },
      { id: FORMAT_BLOB, options },
    ]),
  );
  // The copy for a change that is killed is deleted at the end, so it must not be locked.
  const formatBlobs = storage.puts.filter(({ id }) => !id.startsWith(RECOVERY_COPY_PREFIX));
  expect(formatBlobs.every((put) => put.options?.retention === retention)).toBe(true);
  await storage.close();
});
