import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { MINUTE_NS } from '../../../../src/base/index.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { done, failedWith, progress } from '../../operations/support/after-run.ts';
import { itFollowsOperations } from '../../operations/support/step-suite.ts';
import { World } from '../support/world.ts';

const scratch = tempDirectory('scratch');
const OPERATIONS = 'restores/r1/restore-r1-itemoperations.json.gz';

async function waiting(...ids: string[]): Promise<World> {
  const world = await new World().begin(ids);
  for (const id of ids) world.answers.set(id, progress());
  return world;
}
const logOf = (world: World): string => {
  const bytes = world.bucket.objects.get('restores/r1/restore-r1-logs.gz');
  return bytes ? gunzipSync(bytes).toString() : '';
};
const errorsOf = async (world: World) => (await world.archive.results('r1')).errors ?? {};

describe('a restore that waits for operations', () => {
  itFollowsOperations('restore', scratch, waiting);

  it('stores the file, then the Restore when the last operation is over', async () => {
    const world = await waiting('op-1');
    const server = world.server(scratch);
    await server.step();
    world.requests.length = 0;
    world.answers.set('op-1', done);
    expect((await server.step()).hasLeft).toBe(true);
    expect(world.requests.filter((text) => /^(put|PATCH)/.test(text))).toEqual([
      'put restore-r1-itemoperations.json.gz',
      'PATCH restores',
    ]);
    expect(world.status).toMatchObject({ phase: 'Finalizing', restoreItemOperationsCompleted: 1 });
    expect(world.status.errors).toBeUndefined();
  });

  it('says a failure in the count, the results and the log, each once', async () => {
    const world = await waiting('op-1', 'op-2');
    const server = world.server(scratch);
    world.answers.set('op-1', failedWith('no space left'));
    await server.step();
    expect(world.status).toMatchObject({
      phase: 'WaitingForPluginOperationsPartiallyFailed',
      errors: 1,
      restoreItemOperationsFailed: 1,
    });
    world.answers.set('op-2', failedWith('gone'));
    await server.step();
    expect(world.status).toMatchObject({ phase: 'FinalizingPartiallyFailed', errors: 2 });
    const texts = ['op-1: no space left', 'op-2: gone'].map(
      (text) =>
        `error from restore item operation: persistentvolumeclaims ${text}, plugin: velero.io/csi-pvc-restorer`,
    );
    expect(await errorsOf(world)).toEqual({ namespaces: { app: texts } });
    for (const text of texts) expect(logOf(world).split(text)).toHaveLength(2);
    expect(logOf(world)).toContain(' restore=velero/r1 ');
  });

  it('goes on by the file where another server has begun', async () => {
    const world = await waiting('op-1', 'op-2');
    world.answers.set('op-1', failedWith('broke'));
    await world.server(scratch).step();
    world.answers.set('op-2', done);
    await world.server(scratch).step();
    expect(world.status).toMatchObject({
      phase: 'FinalizingPartiallyFailed',
      restoreItemOperationsCompleted: 1,
      restoreItemOperationsFailed: 1,
      errors: 1,
    });
  });

  it.each([
    ['gone', (world: World) => world.bucket.objects.delete(OPERATIONS)],
    ['damaged', (world: World) => world.bucket.objects.set(OPERATIONS, Buffer.from('{"a":'))],
  ])('is partially failed, with a sentence, where the operations file is %s', async (_, lose) => {
    const world = await waiting('op-1', 'op-2');
    lose(world);
    const server = world.server(scratch);
    await expect(server.step()).rejects.toThrow('2 of 2 item operations are missing');
    // The missing file may come back, so it is not replaced.
    expect(world.requests.filter((text) => text.startsWith('put'))).toEqual([]);
    for (let minutes = 1; minutes < 10; minutes++) {
      world.clock.advance(MINUTE_NS);
      await expect(server.step()).rejects.toThrow('item operations are missing');
    }
    world.clock.advance(MINUTE_NS);
    expect((await server.step()).hasLeft).toBe(true);
    const failed = { restoreItemOperationsAttempted: 2, restoreItemOperationsFailed: 2, errors: 2 };
    expect(world.status).toMatchObject({ phase: 'FinalizingPartiallyFailed', ...failed });
    expect((await errorsOf(world)).velero).toEqual([
      expect.stringMatching(/^2 of 2 item operations are missing in the operations file/),
    ]);
    await server.finalize();
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', ...failed });
    expect((await errorsOf(world)).velero).toHaveLength(1);
  });

  it('goes on as though nothing had been when an operations file is back that was behind', async () => {
    const world = await waiting('op-1');
    const file = world.bucket.objects.get(OPERATIONS) as Buffer;
    world.bucket.objects.delete(OPERATIONS);
    const server = world.server(scratch);
    await expect(server.step()).rejects.toThrow('missing');
    world.bucket.objects.set(OPERATIONS, file);
    world.answers.set('op-1', done);
    expect((await server.step()).hasLeft).toBe(true);
    expect(world.status).toMatchObject({ phase: 'Finalizing', restoreItemOperationsCompleted: 1 });
  });

  it('writes nothing for a Restore that has gone on meanwhile', async () => {
    const world = await waiting('op-1');
    const server = world.server(scratch);
    world.answers.set('op-1', done);
    const seen = world.restore;
    world.say({ phase: 'Completed' });
    const now = world.restore;
    world.restore = seen;
    const step = server.step();
    world.restore = now;
    expect((await step).hasLeft).toBe(true);
    expect(world.status.phase).toBe('Completed');
  });
});

describe('a restore that is deleted while it waits', () => {
  const configMap = {
    metadata: {
      namespace: 'velero',
      name: 'du-1',
      labels: { 'velero.io/restore-uid': 'u1', 'velero.io/resource-usage': 'DataUpload' },
    },
  };

  it('tells its operations to stop, and removes its ConfigMaps', async () => {
    const world = await waiting('op-1', 'op-2');
    world.cluster.add('configmaps', configMap);
    const server = world.server(scratch);
    expect(await server.endIt()).toBeUndefined();
    expect(world.canceled.sort()).toEqual(['op-1', 'op-2']);
    expect(world.cluster.get('configmaps', 'velero/du-1')).toBeUndefined();
    expect(await server.endIt()).toBeUndefined();
  });

  it('does what it can where its backup is gone', async () => {
    const world = await waiting('op-1');
    world.cluster.add('configmaps', configMap);
    world.cluster.remove('backups.velero.io', 'velero/b1');
    expect(await world.server(scratch).endIt()).toContain('Backup velero/b1 of restore r1');
    expect(world.cluster.get('configmaps', 'velero/du-1')).toBeUndefined();
  });

  it('still knows its operations where its backup went after they were looked at', async () => {
    const world = await waiting('op-1');
    const server = world.server(scratch);
    await server.step();
    world.cluster.remove('backups.velero.io', 'velero/b1');
    world.answers.set('op-1', done);
    await server.step();
    expect(world.status.phase).toBe('Finalizing');
  });
});
