import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import {
  deletionRecord,
  keepDeletionRecord,
} from '../../../src/agent/reconcile/deletion-record.ts';
import { CONFIG_MAPS, type DataUpload, type KubeClient } from '../../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { recordingLogger } from '../../support/repositories.ts';
import { anUpload } from '../../support/builders.ts';

const upload = (snapshotID: string, spec: object = {}, metadata: object = {}): DataUpload =>
  anUpload({
    metadata: {
      name: 'b1-x7k2p',
      namespace: NAMESPACE,
      uid: 'upload-uid',
      labels: { 'velero.io/backup-name': 'b1' },
      ownerReferences: [
        {
          apiVersion: 'velero.io/v1',
          kind: 'Backup',
          name: 'b1',
          uid: 'backup-uid',
          controller: true,
        },
      ],
      ...metadata,
    },
    spec: {
      datamover: 'longshore',
      sourceNamespace: 'app',
      sourcePVC: 'data',
      backupStorageLocation: 'default',
      ...spec,
    },
    status: { phase: 'Completed', snapshotID },
  });

describe("what Velero's deletion of a backup lists", () => {
  it("is a ConfigMap as its own mover's uploads get, and goes with the backup", () => {
    expect(deletionRecord(upload('abc'))).toEqual({
      metadata: {
        name: 'b1-x7k2p-info',
        namespace: NAMESPACE,
        labels: {
          'velero.io/backup-name': 'b1',
          'velero.io/data-upload-snapshot-info': 'true',
          'velero.io/exclude-from-backup': 'true',
        },
        ownerReferences: [
          { apiVersion: 'velero.io/v1', kind: 'Backup', name: 'b1', uid: 'backup-uid' },
        ],
      },
      data: {
        volumeNamespace: 'app',
        backupStorageLocation: 'default',
        snapshotID: 'abc',
        repositoryType: 'kopia',
        source: 'app/data',
        uploaderType: 'kopia',
        repoIdentifier: '',
      },
    });
  });

  it('names the snapshot of the outcome that is written while the phase is not final', () => {
    const outcome = { phase: 'Completed', status: { snapshotID: 'def' } };
    const annotations = { 'longshore.io/outcome': JSON.stringify(outcome) };
    const ending = { ...upload('', {}, { annotations }), status: { phase: 'InProgress' } };
    expect(deletionRecord(ending as DataUpload)?.data?.snapshotID).toBe('def');
  });

  it('goes with the upload where no backup owns that', () => {
    const record = deletionRecord(upload('abc', {}, { ownerReferences: undefined }));
    expect(record?.metadata.ownerReferences).toEqual([
      { apiVersion: 'velero.io/v2alpha1', kind: 'DataUpload', name: 'b1-x7k2p', uid: 'upload-uid' },
    ]);
  });

  it.each([
    ["Velero's own mover by its empty name", upload('abc', { datamover: '' })],
    ["Velero's own mover", upload('abc', { datamover: 'velero' })],
    ["Velero's own mover by its newer name", upload('abc', { datamover: 'velero-fs' })],
    ['a backup that nothing names', upload('abc', {}, { labels: {} })],
    ['an empty volume, which has no snapshot', upload('')],
    ['one that failed', { ...upload('abc'), status: { phase: 'Failed', snapshotID: 'abc' } }],
    ['one that is not at its end', { ...upload('abc'), status: { phase: 'InProgress' } }],
  ])('is not written for %s', (_, movement) => {
    expect(deletionRecord(movement as DataUpload)).toBeUndefined();
  });

  describe('on the API server', () => {
    let cluster: TestCluster;
    const logger = recordingLogger();
    const ref = { name: 'b1-x7k2p-info', namespace: NAMESPACE };
    beforeAll(async () => {
      cluster = await TestCluster.start();
    });
    afterAll(async () => {
      await cluster[Symbol.asyncDispose]();
    });
    const idNow = async (): Promise<string | undefined> =>
      (await cluster.client.find(CONFIG_MAPS, ref))?.data?.snapshotID;

    it('is there once, also when an agent died after it, and names the snapshot of the last mover', async () => {
      const { client } = cluster;
      await keepDeletionRecord(upload('first'), { client, logger });
      await keepDeletionRecord(upload('first'), { client, logger });
      expect(await idNow()).toBe('first');
      await keepDeletionRecord(upload('second'), { client, logger });
      expect(await idNow()).toBe('second');
      expect(logger.messages).toEqual([]);
    });

    it("leaves somebody else's ConfigMap of that name alone, and says what follows", async () => {
      const { client } = cluster;
      await client.delete(CONFIG_MAPS, ref);
      await client.create(CONFIG_MAPS, { metadata: ref, data: { mine: 'yes' } });
      await keepDeletionRecord(upload('third'), { client, logger });
      expect((await client.get(CONFIG_MAPS, ref)).data).toEqual({ mine: 'yes' });
      expect(logger.messages).toEqual([
        'the snapshot of this upload will not be deleted together with its backup',
      ]);
    });
  });

  it.each([
    ['KUBE_FORBIDDEN', false],
    ['KUBE_UNAVAILABLE', true],
  ])('after %s: whether the upload waits: %s', async (code, waits) => {
    const client = {
      create: () => Promise.reject(new CodedError(code, 'refused on purpose')),
    } as unknown as KubeClient;
    const logger = recordingLogger();
    const kept = keepDeletionRecord(upload('abc'), { client, logger });
    if (waits) await expect(kept).rejects.toMatchObject({ code });
    else await kept;
    expect(logger.messages).toHaveLength(waits ? 0 : 1);
  });

  it.each([
    [1, true],
    [6, false],
  ])(
    'without the right %s min after the end: whether it is tried again: %s',
    async (age, waits) => {
      const nowMs = Date.parse('2026-01-01T12:00:00Z');
      const client = {
        clock: { nowNs: () => BigInt(nowMs) * 1_000_000n },
        create: () =>
          Promise.reject(
            new CodedError('KUBE_FORBIDDEN', 'it is forbidden: User "longshore" cannot do that'),
          ),
      } as unknown as KubeClient;
      const completionTimestamp = new Date(nowMs - age * 60_000).toISOString();
      const ended = upload('abc');
      const movement = { ...ended, status: { ...ended.status, completionTimestamp } } as DataUpload;
      const kept = keepDeletionRecord(movement, { client, logger: recordingLogger() });
      if (waits) await expect(kept).rejects.toMatchObject({ code: 'KUBE_FORBIDDEN' });
      else await kept;
    },
  );
});
