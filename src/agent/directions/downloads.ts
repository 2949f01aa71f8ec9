import { CodedError, messageOf } from '../../base/index.ts';
import {
  type ExposerOptions,
  GenericRestoreExposer,
  hostedName,
  InPlaceExposer,
} from '../../exposer/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  inPlaceOrderOf,
  isInPlace,
  PVCS,
} from '../../kube/index.ts';
import { describeInPlace, inPlaceReportOf, mayHaveWritten } from '../mover/in-place-report.ts';
import { hadMoverBefore } from '../mover/moved-volume.ts';
import { isFinal, isMoving } from '../movement.ts';
import { volumesNoted } from '../reconcile/recorded-outcome.ts';
import { stopMover } from '../mover/stopped-mover.ts';
import { type Direction, durationProblem, leftOutNote } from './direction.ts';

/** DataDownloads: write a volume for a waiting PVC, or write to a PVC's volume in place. */
export function downloads(options: ExposerOptions): Direction<DataDownload> {
  const generic = new GenericRestoreExposer(options);
  const inPlace = new InPlaceExposer(options);
  const exposerOf = (download: DataDownload): GenericRestoreExposer | InPlaceExposer =>
    isInPlace(download) ? inPlace : generic;
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
    hindranceOf: async (download) => {
      const { namespace, pvc: name } = download.spec.targetVolume;
      const found = await client.find(PVCS, { namespace, name });
      if (found) return undefined;
      return isInPlace(download)
        ? { never: `PVC ${namespace}/${name} does not exist: only a volume that is there can be restored in place` } // prettier-ignore
        : { waitsFor: `PVC ${namespace}/${name} does not exist yet` };
    },
    problemOf: (download) => {
      const { spec } = download;
      if (spec.snapshotID === '')
        return 'spec.snapshotID is empty: it must name the snapshot to restore';
      if (spec.targetVolume.pvc === '') return 'spec.targetVolume.pvc is empty';
      return (
        orderProblem(download) ??
        restoreTypeProblem(download) ??
        durationProblem(spec.operationTimeout)
      );
    },
    expose: (download, context) => exposerOf(download).expose(download, context),
    waitUsable: (download, context) => exposerOf(download).waitUsable(download, context),
    startAgain: (download, context) => exposerOf(download).startAgain(download, context),
    diagnose: (download) => exposerOf(download).diagnose(download),
    volumesOf: (download) => exposerOf(download).volumesOf(download),
    cleanUp: async (download, isBare) => {
      // After the final phase users may use the volume again.
      const mayWrite = isInPlace(download) && isBare !== true && !isFinal(download);
      if (mayWrite) await stopMover(download, options);
      return exposerOf(download).cleanUp(download, volumesNoted(download) ?? [], isBare);
    },
    isEndAwaited: isInPlace,
    failNote: (download, message) => (isMixtureUntold(download, message) ? MIXTURE : ''),
    lostReason: async (download, signal) =>
      isInPlace(download)
        ? inPlace.lostReason(download, { signal, isMoving: isMoving(download) })
        : undefined,
    isCompleting: (download) =>
      isInPlace(download) ? inPlaceReportOf(download) !== undefined : generic.isRebinding(download),
    lacks: () => undefined,
    complete: async (download, result, context) => {
      if (!isInPlace(download)) {
        await generic.rebind(download, context);
        return leftOutNote(result);
      }
      const problem = await inPlace.targetProblem(download, context.signal);
      if (problem !== undefined) {
        const text = `${problem}: the volume that was brought back is not the one it has`;
        throw new CodedError('TARGET_UNUSABLE', text);
      }
      // After Completed a user may start a pod with the volume, on any node.
      await inPlace.cleanUp(download);
      const noted = await client.find(DATA_DOWNLOADS, download.metadata, context);
      const report = noted && inPlaceReportOf(noted);
      const { dryRun } = inPlaceOrderOf(download) ?? {};
      const unnoted = dryRun === true ? 'dry run: nothing was written' : 'brought back in place';
      const done = report ? describeInPlace(report) : `${unnoted}; what differed was not noted`;
      return { message: result.note === undefined ? done : `${done}; ${result.note}` };
    },
  };
}

/** Start of the messages for failed movers (phases/moving.ts). */
const MOVER_FAILED = 'data path restore failed';
const MIXTURE =
  ' (a data mover may have written: the volume may hold files or blocks of before and of the snapshot; restore it again before something uses it)';

/**
 * Whether the message must still say that the volume may be a mixture. A failed mover reports only
 * its own writes, not those of earlier movers. A hanging or lost mover reports nothing.
 */
function isMixtureUntold(download: DataDownload, message: string): boolean {
  if (!isInPlace(download) || !mayHaveWritten(download)) return false;
  const isOwnWord = message.startsWith(MOVER_FAILED) && !hadMoverBefore(download);
  return !isOwnWord && !message.includes('may hold files or blocks');
}

/**
 * A server of Velero 1.19 asks for a volume to be overwritten (targetVolume.pv) and has removed its
 * PVC. This agent would fill a new volume instead. If `pv` is empty, the server wants a new volume
 * for every type.
 */
function restoreTypeProblem(download: DataDownload): string | undefined {
  const { restoreType = '', targetVolume } = download.spec;
  if (restoreType === '' || targetVolume.pv === '' || isInPlace(download)) return undefined;
  return `spec.restoreType is "${restoreType}" for the PersistentVolume ${targetVolume.pv}: this node-agent does no restore in place that a server of Velero asks for. Nothing was written, and the volume is kept; a server of Longshore brings back volumes whose PVC is there`;
}

/** The problem with an order for a restore in place; undefined if there is none. */
function orderProblem(download: DataDownload): string | undefined {
  try {
    inPlaceOrderOf(download);
    return undefined;
  } catch (error) {
    return messageOf(error);
  }
}
