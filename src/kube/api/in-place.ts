import { CodedError, lookup } from '../../base/index.ts';
import type { DataDownload } from './resources.ts';

/**
 * Asks for a volume that exists to be brought back, instead of a new one to be filled. In
 * `spec.dataMoverConfig`, and no field of its own, since API servers drop fields that the
 * definitions of Velero 1.18 do not have. Read by our own agents and data movers only.
 */
const IN_PLACE = 'longshore.inPlace';
const DRY_RUN = 'longshore.dryRun';
const MAX_WRITE = 'longshore.maxWriteBytes';
const REMOVE_FIRST = 'longshore.removeFirst';
const DELETE_EXCLUDED = 'longshore.deleteExcluded';
/** UID of the claim that was meant: another one may have got its name. */
const CLAIM_UID = 'longshore.claimUID';
/**
 * UID of the PersistentVolume that was meant: one that is made anew under its name may be another
 * volume of the storage.
 */
const VOLUME_UID = 'longshore.volumeUID';
/**
 * Of Velero's own design (`uploaderConfig.deleteExtraFiles`), spelled as the other settings of its
 * data mover are.
 */
const DELETE_EXTRA = 'DeleteExtraFiles';

/**
 * `spec.datamover` of a restore in place: nobody but our own agents serves it, whatever else they
 * serve.
 */
export const IN_PLACE_MOVER = 'longshore';

/** How a volume of the cluster is to be brought back to a snapshot. */
export interface InPlaceOrder {
  /** Nothing is written. */
  readonly dryRun: boolean;
  /** Files that the snapshot does not have stay. */
  readonly keepExtra: boolean;
  /** Extra files are removed before others are written, and not at the end. */
  readonly removeFirst?: boolean | undefined;
  /** Files go as well that the rules of the backup left out. */
  readonly deleteExcluded?: boolean | undefined;
  /** With more to write and to remove, nothing is changed. */
  readonly maxWriteBytes?: number | undefined;
  readonly claimUid?: string | undefined;
  readonly volumeUid?: string | undefined;
}

export const inPlaceConfig = ({
  dryRun,
  keepExtra,
  removeFirst,
  deleteExcluded,
  maxWriteBytes,
  claimUid,
  volumeUid,
}: InPlaceOrder): Record<string, string> => ({
  [IN_PLACE]: 'true',
  [DELETE_EXTRA]: String(!keepExtra),
  ...(removeFirst === true && { [REMOVE_FIRST]: 'true' }),
  ...(deleteExcluded === true && { [DELETE_EXCLUDED]: 'true' }),
  ...(dryRun && { [DRY_RUN]: 'true' }),
  ...(maxWriteBytes !== undefined && { [MAX_WRITE]: String(maxWriteBytes) }),
  ...(claimUid !== undefined && { [CLAIM_UID]: claimUid }),
  ...(volumeUid !== undefined && { [VOLUME_UID]: volumeUid }),
});

/** Whether it asks for that, well or badly. */
export const isInPlace = ({ spec }: DataDownload): boolean =>
  spec.dataMoverConfig?.[IN_PLACE] !== undefined;

/** Undefined where it asks for a new volume. Throws `BAD_MOVER_CONFIG`. */
export function inPlaceOrderOf(download: DataDownload): InPlaceOrder | undefined {
  if (!isInPlace(download)) return undefined;
  const { dataMoverConfig: config = {}, datamover } = download.spec;
  if (!flagOf(config, IN_PLACE)) throw bad(IN_PLACE, config[IN_PLACE] ?? '', 'true');
  if (datamover !== IN_PLACE_MOVER) {
    const text = `spec.datamover is "${datamover ?? ''}": a restore in place needs "${IN_PLACE_MOVER}", which no other node-agent serves`;
    throw new CodedError('BAD_MOVER_CONFIG', text);
  }
  const most = config[MAX_WRITE];
  if (most !== undefined && !(/^\d{1,16}$/.test(most) && Number.isSafeInteger(Number(most)))) {
    throw bad(MAX_WRITE, most, `a whole number of bytes, at most ${Number.MAX_SAFE_INTEGER}`);
  }
  const { [CLAIM_UID]: claimUid, [VOLUME_UID]: volumeUid } = config;
  return {
    dryRun: flagOf(config, DRY_RUN),
    keepExtra: !flagOf(config, DELETE_EXTRA),
    ...(flagOf(config, REMOVE_FIRST) && { removeFirst: true }),
    ...(flagOf(config, DELETE_EXCLUDED) && { deleteExcluded: true }),
    ...(most !== undefined && { maxWriteBytes: Number(most) }),
    ...(claimUid !== undefined && { claimUid }),
    ...(volumeUid !== undefined && { volumeUid }),
  };
}

/** False where it is not there. */
function flagOf(config: Readonly<Record<string, string>>, key: string): boolean {
  const text = lookup(config, key) ?? 'false';
  if (text === 'true' || text === 'false') return text === 'true';
  throw bad(key, text, 'true or false');
}

const bad = (key: string, text: string, wanted: string): CodedError =>
  new CodedError(
    'BAD_MOVER_CONFIG',
    `spec.dataMoverConfig: ${key} is "${text}", and must be ${wanted}`,
  );
