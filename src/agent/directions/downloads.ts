import { type ExposerOptions, GenericRestoreExposer, hostedName } from '../../exposer/index.ts';
import { DATA_DOWNLOADS, type DataDownload, PVCS } from '../../kube/index.ts';
import { volumesNoted } from '../outcome.ts';
import { type Direction, durationProblem } from './direction.ts';

/** DataDownloads: a volume is written, and given to the PVC that waits for it. */
export function downloads(options: ExposerOptions): Direction<DataDownload> {
  const exposer = new GenericRestoreExposer(options);
  const { client } = options;
  return {
    name: 'download',
    moves: 'restore',
    resource: DATA_DOWNLOADS,
    noun: 'data download',
    shortNoun: 'datadownload',
    hostedName: (pod) => hostedName(pod, 'data-download'),
    homeOf: () => undefined,
    isCheapToLook: false,
    hindranceOf: async ({ spec: { targetVolume } }) => {
      const { namespace, pvc: name } = targetVolume;
      const found = await client.find(PVCS, { namespace, name });
      return found ? undefined : { waitsFor: `PVC ${namespace}/${name} does not exist yet` };
    },
    problemOf: ({ spec }) => {
      if (spec.snapshotID === '')
        return 'spec.snapshotID is empty: it must name the snapshot to restore';
      if (spec.targetVolume.pvc === '') return 'spec.targetVolume.pvc is empty';
      return durationProblem(spec.operationTimeout);
    },
    expose: (download, context) => exposer.expose(download, context),
    waitUsable: (download, context) => exposer.waitUsable(download, context),
    startAgain: (download, context) => exposer.startAgain(download, context),
    diagnose: (download) => exposer.diagnose(download),
    volumesOf: (download) => exposer.volumesOf(download),
    cleanUp: (download, isBare) => exposer.cleanUp(download, volumesNoted(download) ?? [], isBare),
    isCompleting: (download) => exposer.isRebinding(download),
    lacks: () => undefined,
    complete: async (download, _result, context) => {
      await exposer.rebind(download, context);
      return {};
    },
  };
}
