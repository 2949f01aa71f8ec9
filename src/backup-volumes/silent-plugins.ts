import { CodedError, isCode } from '../base/index.ts';
import type { VolumeSnapshotter } from '../plugin/index.ts';

/** The snapshotter calls that a backup makes. */
export type AskedSnapshotter = Pick<
  VolumeSnapshotter,
  'volumeIdOf' | 'volumeInfo' | 'createSnapshot'
>;

/** A single slow volume may time out. Our choice. */
const UNANSWERED_MAX = 2;

/**
 * Stops calling a snapshotter after this many calls of one kind in a row without an answer. Each
 * call may wait for hours, and a backup may have thousands of volumes. Then throws `PLUGIN_SILENT`.
 */
export function unlessSilent(snapshotter: VolumeSnapshotter, location: string): AskedSnapshotter {
  const unanswered = new Map<string, number>();
  let silent: string | undefined;
  const ask = async <T>(call: string, task: () => Promise<T>): Promise<T> => {
    if (silent !== undefined) {
      const text = `the plugin of VolumeSnapshotLocation ${location} left ${silent} without an answer ${UNANSWERED_MAX} times in a row and is not asked again in this backup: find out why it, or its provider, does not answer, and make the backup again`;
      throw new CodedError('PLUGIN_SILENT', text, { facts: { location, call: silent } });
    }
    try {
      const answer = await task();
      unanswered.delete(call);
      return answer;
    } catch (error) {
      if (!isCode(error, 'PLUGIN_TIMEOUT')) unanswered.delete(call);
      else {
        const count = (unanswered.get(call) ?? 0) + 1;
        unanswered.set(call, count);
        if (count >= UNANSWERED_MAX) silent ??= call;
      }
      throw error;
    }
  };
  return {
    volumeIdOf: (...given) => ask('GetVolumeID', () => snapshotter.volumeIdOf(...given)),
    volumeInfo: (...given) => ask('GetVolumeInfo', () => snapshotter.volumeInfo(...given)),
    createSnapshot: (...given) => ask('CreateSnapshot', () => snapshotter.createSnapshot(...given)),
  };
}
