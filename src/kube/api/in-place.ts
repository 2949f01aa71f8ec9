import { CodedError, lookup } from '../../base/index.ts';
import type { DataDownload } from './resources.ts';

/**
 * Requests a restore into an existing volume, instead of a new one. This is in
 * `spec.dataMoverConfig`, because API servers drop fields that the CRDs of Velero 1.18 lack. Only
 * our own agents and data movers read it.
 */
const IN_PLACE = 'longshore.inPlace';
const DRY_RUN = 'longshore.dryRun';
const MAX_WRITE = 'longshore.maxWriteBytes';
const REMOVE_FIRST = 'longshore.removeFirst';
const DELETE_EXCLUDED = 'longshore.deleteExcluded';
/** UID of the intended claim, because a new claim may have got its name. */
const CLAIM_UID = 'longshore.claimUID';
/** UID of the intended PersistentVolume. A new one of this name may be another volume. */
const VOLUME_UID = 'longshore.volumeUID';
/** Velero's `uploaderConfig.deleteExtraFiles`, spelled like its data mover's other settings. */
const DELETE_EXTRA = 'DeleteExtraFiles';

/** `spec.datamover` of a restore in place. Only our own agents serve this value. */
export const IN_PLACE_MOVER = 'longshore';

/** How to restore an existing volume to a snapshot. */
export interface InPlaceOrder {
  /** Write nothing. */
  readonly dryRun: boolean;
  /** Keep files that the snapshot does not have. */
  readonly keepExtra: boolean;
  /** Remove extra files before writing others, not at the end. */
  readonly removeFirst?: boolean | undefined;
  /** Also remove files that the rules of the backup excluded. */
  readonly deleteExcluded?: boolean | undefined;
  /** Change nothing if more bytes than this must be written and removed. */
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

/** Whether a restore in place is requested, with valid settings or not. */
export const isInPlace = ({ spec }: DataDownload): boolean =>
  spec.dataMoverConfig?.[IN_PLACE] !== undefined;

/** Undefined for a restore into a new volume. Throws `BAD_MOVER_CONFIG`. */
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

/** False if the key is missing. */
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
