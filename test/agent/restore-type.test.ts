import { describe, expect, it } from 'vitest';
import { downloads } from '../../src/agent/directions/downloads.ts';
import { podVolumeRestores } from '../../src/agent/directions/pod-volumes.ts';
import { type DataDownload, inPlaceConfig, type PodVolumeRestore } from '../../src/kube/index.ts';
import { aDownload, aPodVolumeRestore } from '../support/builders.ts';

/**
 * What servers of Velero 1.19 write for restores in place: understood, or refused by name, and
 * never taken for something else.
 */

const download = (restoreType: string | undefined, pv: string, more: object = {}): DataDownload =>
  aDownload({
    metadata: { name: 'd', namespace: 'velero' },
    spec: {
      snapshotID: 's',
      sourceNamespace: 'app',
      backupStorageLocation: 'default',
      operationTimeout: '10m0s',
      targetVolume: { namespace: 'app', pvc: 'data', pv },
      ...(restoreType !== undefined && { restoreType }),
      ...more,
    },
  });

describe('a DataDownload', () => {
  const direction = downloads({} as never);
  const problemOf = (given: DataDownload): string | undefined => direction.problemOf(given);

  it.each([
    [undefined, ''],
    ['', ''],
    // The volume of a PVC that was not there: filled as always.
    ['full', ''],
    ['incremental', ''],
    // As Velero 1.18 would let it pass.
    [undefined, 'pv-1'],
  ])('of type %j with the volume %j fills a new volume', (restoreType, pv) => {
    expect(problemOf(download(restoreType, pv))).toBeUndefined();
  });

  it.each(['full', 'incremental'])(
    'of type %s for a volume that a server of Velero took from its PVC is refused',
    (restoreType) => {
      const problem = problemOf(download(restoreType, 'pv-1'));
      expect(problem).toMatch(
        new RegExp(`^spec.restoreType is "${restoreType}" for the PersistentVolume pv-1: `),
      );
      expect(problem).toContain('Nothing was written, and the volume is kept');
    },
  );

  it('of a server of ours says the same in dataMoverConfig, which the definitions of 1.18 keep', () => {
    const dataMoverConfig = inPlaceConfig({ dryRun: false, keepExtra: true });
    for (const restoreType of [undefined, 'full']) {
      const ours = download(restoreType, '', { datamover: 'longshore', dataMoverConfig });
      expect(problemOf(ours)).toBeUndefined();
    }
  });
});

describe('a PodVolumeRestore', () => {
  const direction = podVolumeRestores({ exposer: {}, node: 'n' } as never);
  const problemOf = (given: PodVolumeRestore): string | undefined => direction.problemOf(given);
  const restore = (more: object): PodVolumeRestore =>
    aPodVolumeRestore({
      metadata: { name: 'r', namespace: 'velero' },
      spec: { snapshotID: 's', volume: 'v', pod: { namespace: 'app', name: 'p' }, ...more },
    });

  it.each(['', 'full', 'incremental'])('of type %j writes over what is there', (restoreType) => {
    expect(problemOf(restore({ restoreType }))).toBeUndefined();
    const uploaderSettings = { DeleteExtraFiles: 'false', WriteSparseFiles: 'true' };
    expect(problemOf(restore({ restoreType, uploaderSettings }))).toBeUndefined();
  });

  it('that is to remove files is refused', () => {
    const problem = problemOf(restore({ uploaderSettings: { DeleteExtraFiles: 'true' } }));
    expect(problem).toContain('files that the backup does not have are not removed');
  });
});
