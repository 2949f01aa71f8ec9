import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { BackupArchive } from '../../../../src/archive/index.ts';
import { newOperation, orderedRecord } from '../../../../src/item-operations/index.ts';
import { cancelOperations } from '../../../../src/server/operations/cancel-operations.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { done, failedWith, progress } from '../../operations/support/after-run.ts';
import { itFollowsOperations } from '../../operations/support/step-suite.ts';
import { ITEM, SUBJECT, World } from '../support/world.ts';

const scratch = tempDirectory('scratch');
const begun = (operationId: string) => ({ action: 'a.io/move', operationId, item: ITEM });

async function waiting(...ids: string[]): Promise<World> {
  const world = new World();
  await world.begin(scratch, ids.map(begun));
  for (const id of ids) world.answers.set(id, progress());
  return world;
}

const logOf = (world: World): string => {
  const bytes = world.bucket.objects.get('backups/b1/b1-logs.gz');
  return bytes ? gunzipSync(bytes).toString() : '';
};

describe('a backup that waits for operations', () => {
  itFollowsOperations('backup', scratch, waiting);

  it('stores the file, then the metadata, then the CR when the last operation is over', async () => {
    const world = await waiting('op-1');
    const server = world.server(scratch);
    await server.step();
    world.requests.length = 0;
    world.answers.set('op-1', done);
    expect((await server.step()).hasLeft).toBe(true);
    expect(world.requests.filter((text) => /^(put|PATCH)/.test(text))).toEqual([
      'put b1-itemoperations.json.gz',
      'put longshore-checksums.json',
      'put velero-backup.json',
      'put longshore-checksums.json',
      'PATCH backup',
    ]);
    expect(world.status).toMatchObject({
      phase: 'Finalizing',
      backupItemOperationsCompleted: 1,
      errors: 0,
    });
    const stored = await new BackupArchive(world.bucket).loadMetadata('b1');
    expect(stored.status?.phase).toBe('Finalizing');
  });

  it('says a failure in the count, the results and the log, each once', async () => {
    const world = await waiting('op-1', 'op-2');
    const server = world.server(scratch);
    world.answers.set('op-1', failedWith('no space left'));
    await server.step();
    expect(world.status).toMatchObject({
      phase: 'WaitingForPluginOperationsPartiallyFailed',
      errors: 1,
      backupItemOperationsFailed: 1,
    });
    world.answers.set('op-2', failedWith('gone'));
    await server.step();
    expect(world.status).toMatchObject({ phase: 'FinalizingPartiallyFailed', errors: 2 });
    const open = await new BackupArchive(world.bucket).open('b1');
    const texts = ['no space left, plugin: a.io/move', 'gone, plugin: a.io/move'];
    expect((await open.results()).errors?.namespaces).toEqual({
      app: texts.map((text) => ` resource: /configmaps name: /a message: /${text}`),
    });
    for (const text of texts) expect(logOf(world).split(text)).toHaveLength(2);
  });

  it('writes nothing for a Backup that has gone on meanwhile', async () => {
    const world = await waiting('op-1');
    const server = world.server(scratch);
    world.answers.set('op-1', done);
    const { find } = { find: world.backup };
    world.say({ phase: 'WaitingForPluginOperations' });
    const seen = find;
    world.say({ phase: 'Completed' });
    const now = world.backup;
    world.backup = seen;
    const step = server.step();
    world.backup = now;
    expect((await step).hasLeft).toBe(true);
    expect(world.status.phase).toBe('Completed');
    expect(world.requests).not.toContain('put velero-backup.json');
  });

  it.each<[string, (world: World) => Promise<unknown>]>([
    ['is gone', (world) => world.files.delete('backups/b1/b1-itemoperations.json.gz')],
    [
      'is of an earlier backup of its name',
      (world) => {
        const operation = newOperation({ ...SUBJECT, uid: 'u0' }, begun('op-0'), 0n);
        const itemOperations = [orderedRecord(operation)];
        return new BackupArchive(world.files).update('b1', { itemOperations });
      },
    ],
  ])(
    'is not complete if the file of its operations %s, and a new server leads',
    async (_, lose) => {
      const world = await waiting('op-1');
      await lose(world);
      expect((await world.server(scratch).step()).hasLeft).toBe(true);
      const counts = { backupItemOperationsAttempted: 1 };
      expect(world.status).toMatchObject({ phase: 'FinalizingPartiallyFailed', ...counts });
      await world.server(scratch).finalize();
      expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1, ...counts });
      expect(logOf(world)).toContain('1 of 1 item operations are missing');
    },
  );

  it('tells all running operations to stop, and names what could not be told', async () => {
    const world = await waiting('op-1', 'op-2');
    const { map, asker, signal } = world.server(scratch);
    expect(await cancelOperations(map, SUBJECT, { asker, signal })).toBeUndefined();
    expect(world.canceled.sort()).toEqual(['op-1', 'op-2']);
    const cancel = (): Promise<never> => Promise.reject(new Error('no route'));
    const untold = await cancelOperations(map, SUBJECT, { asker: { ...asker, cancel }, signal });
    expect(untold).toBe(
      '2 operations could not be told to stop, and may go on: op-1, op-2: no route',
    );
  });
});
