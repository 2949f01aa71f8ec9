import { join } from 'node:path';
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import { ServerPlugins } from '../../../src/server/compose/plugins.ts';
import {
  BACKUPS,
  CONFIG_MAPS,
  DAEMON_SETS,
  DATA_DOWNLOADS,
  EVENTS,
  type PersistentVolumeClaim,
} from '../../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { backupOf, pvcOf, restoreOf, stored } from '../../support/plugin-items.ts';

let test: TestCluster;
beforeAll(async () => {
  test = await TestCluster.start({ nodes: ['node-1'] });
});
afterAll(() => test[Symbol.asyncDispose]());

it('the server tells the users of a Restore, and fails its operation, where no node-agent takes it up', async () => {
  const { client } = test;
  await test.makeNamespace('app');
  await test.makeVolume('app', 'data');
  const { spec } = backupOf('b', { snapshotMoveData: true });
  await client.create(BACKUPS, { metadata: { name: 'b', namespace: NAMESPACE }, spec });
  const restore = restoreOf('r', 'b', { existingVolumeDataPolicy: 'full' });
  const { uid } = restore.metadata;
  await client.create(CONFIG_MAPS, {
    metadata: {
      // As Velero's own action names it.
      name: 'x-result',
      generateName: 'x-',
      namespace: NAMESPACE,
      labels: {
        'velero.io/restore-uid': uid,
        'velero.io/pvc-namespace-name': 'app.data',
        'velero.io/resource-usage': 'DataUpload',
      },
    },
    data: {
      [uid]: JSON.stringify({
        backupStorageLocation: 'default',
        snapshotID: 's',
        sourceNamespace: 'app',
      }),
    },
  });
  await using plugins = ServerPlugins.begin({
    client,
    logger: silentLogger,
    folder: join(test.directory, 'plugins'),
    features: 'EnableCSI',
    makesBackups: true,
    makesRestores: true,
    host: 'h',
    flags: [],
  });
  const host = await plugins.host();
  await using manager = host.manager(silentLogger);
  const action = manager.restoreItemAction('longshore.io/csi-pvc-restorer');
  const context = { signal: new AbortController().signal };
  const claim: PersistentVolumeClaim = stored(await pvcOf(client, 'app', 'data'));
  claim.metadata.annotations = { 'velero.io/data-upload-name': 'velero/x' };
  const input = { item: claim, itemFromBackup: claim, restore };
  const { operationId = '' } = await action.action.execute(input, context);
  const ask = () => action.action.progress(operationId, restore, context);
  vi.useFakeTimers({ toFake: ['performance'] });
  try {
    await ask();
    vi.advanceTimersByTime(20_000);
    const text = 'waits for a node-agent';
    expect((await ask()).description).toContain(text);
    const told = async (): Promise<string[]> => {
      const events = await client.list(EVENTS, { namespace: NAMESPACE });
      return events
        .filter(({ involvedObject }) => involvedObject.uid === uid)
        .map(({ type = '', reason = '', message = '' }) => `${type} ${reason} ${message}`);
    };
    await expect.poll(told).toEqual([expect.stringMatching(`^Warning NobodyMovesData .* ${text}`)]);
    await client.delete(DAEMON_SETS, { namespace: NAMESPACE, name: 'node-agent' });
    for (let i = 0; i < 4; i++) {
      vi.advanceTimersByTime(60_000);
      expect(await ask()).toMatchObject({ completed: false });
    }
    vi.advanceTimersByTime(60_000);
    expect(await ask()).toMatchObject({
      completed: true,
      err: expect.stringContaining('there is no node-agent DaemonSet in this namespace') as string,
    });
    const [download] = await client.list(DATA_DOWNLOADS, { namespace: NAMESPACE });
    expect(download?.spec.cancel).toBe(true);
  } finally {
    vi.useRealTimers();
  }
});
