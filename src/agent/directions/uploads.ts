import { CsiSnapshotExposer, type ExposerOptions, hostedName } from '../../exposer/index.ts';
import { DATA_UPLOADS, type DataUpload } from '../../kube/index.ts';
import { keepDeletionRecord } from '../reconcile/deletion-record.ts';
import { volumesNoted } from '../reconcile/recorded-outcome.ts';
import { type Direction, durationProblem, leftOutNote } from './direction.ts';

/** DataUploads: create a volume from a snapshot, and read it. */
export function uploads(options: ExposerOptions): Direction<DataUpload> {
  const exposer = new CsiSnapshotExposer(options);
  return {
    name: 'upload',
    moves: 'backup',
    resource: DATA_UPLOADS,
    noun: 'data upload',
    shortNoun: 'dataupload',
    hostedName: (pod) => hostedName(pod, 'data-upload'),
    homeOf: () => undefined,
    isCheapToLook: true,
    hindranceOf: async (upload) => {
      const waitsFor = await exposer.waitsFor(upload);
      return waitsFor === undefined ? undefined : { waitsFor };
    },
    problemOf: ({ spec }) => {
      if (spec.snapshotType !== 'CSI') {
        return `spec.snapshotType "${spec.snapshotType}" is not supported; only CSI is`;
      }
      if (!spec.csiSnapshot) return 'spec.csiSnapshot is missing: it must name the VolumeSnapshot';
      return durationProblem(spec.operationTimeout);
    },
    expose: (upload, context) => exposer.expose(upload, context),
    waitUsable: (upload, context) => exposer.waitUsable(upload, context),
    startAgain: (upload, context) => exposer.startAgain(upload, context),
    diagnose: (upload) => exposer.diagnose(upload),
    volumesOf: (upload) => exposer.volumesOf(upload),
    cleanUp: async (upload, isBare) => {
      await keepDeletionRecord(upload, options);
      return exposer.cleanUp(upload, volumesNoted(upload) ?? [], isBare);
    },
    isCompleting: () => false,
    lacks: ({ snapshotID, emptySnapshot }) =>
      snapshotID || emptySnapshot === true ? undefined : 'it ended without naming a snapshot',
    complete: (upload, result) =>
      Promise.resolve({
        path: result.source?.byPath ?? `/${upload.metadata.uid}`,
        snapshotID: result.snapshotID ?? '',
        ...(result.incrementalBytes && { incrementalBytes: result.incrementalBytes }),
        ...leftOutNote(result),
        ...(result.emptySnapshot === true && {
          message: 'volume was empty so no data was upload',
        }),
      }),
  };
}
