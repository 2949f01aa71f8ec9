import { z } from 'zod';
import { CodedError, parseGoTime } from '../../base/index.ts';
import { ENCRYPTION_NAMES, HASH_NAMES, SPLITTERS } from '../../codec/index.ts';

const MINUTE_NS = 60_000_000_000;
const HOUR_NS = 60 * MINUTE_NS;
const MIB = 1 << 20;

/** A Go int64. Durations from 104 days on arrive as bigint. Read only, never written back. */
const long = z.union([z.number().min(0), z.bigint().min(0n).transform(Number)]);

/** Durations in nanoseconds. Kopia's names and defaults (internal/epoch/epoch_manager.go). */
const epochSchema = z.looseObject({
  Enabled: z.boolean().optional().default(false),
  EpochRefreshFrequency: long.optional().default(0),
  FullCheckpointFrequency: z.int().min(0).optional().default(0),
  CleanupSafetyMargin: long.optional().default(0),
  MinEpochDuration: long.optional().default(0),
  EpochAdvanceOnCountThreshold: z.int().min(0).optional().default(0),
  EpochAdvanceOnTotalSizeBytesThreshold: long.optional().default(0),
  DeleteParallelism: z.int().min(0).optional().default(0),
});
export type EpochParameters = z.infer<typeof epochSchema>;

export const DEFAULT_EPOCH_PARAMETERS: EpochParameters = {
  Enabled: true,
  EpochRefreshFrequency: 20 * MINUTE_NS,
  FullCheckpointFrequency: 7,
  CleanupSafetyMargin: 4 * HOUR_NS,
  MinEpochDuration: 24 * HOUR_NS,
  EpochAdvanceOnCountThreshold: 20,
  EpochAdvanceOnTotalSizeBytesThreshold: 10 * MIB,
  DeleteParallelism: 4,
};

const base64 = z.base64().transform((text) => new Uint8Array(Buffer.from(text, 'base64')));

const upgradeLockSchema = z.looseObject({
  ownerID: z.string().optional().default(''),
  creationTime: z.string(),
  advanceNoticeDuration: long.optional().default(0),
  ioDrainTimeout: long.optional().default(0),
  maxPermittedClockDrift: long.optional().default(0),
});

const requiredFeatureSchema = z.looseObject({
  feature: z.string(),
  ifNotUnderstood: z
    .looseObject({ warn: z.boolean().optional(), message: z.string().optional() })
    .optional()
    .default({}),
});

/** The decrypted part of kopia.repository. Byte fields are decoded. Unknown fields are kept. */
export const parametersSchema = z.looseObject({
  hash: z.string(),
  encryption: z.string(),
  ecc: z.string().optional().default(''),
  eccOverheadPercent: z.number().optional().default(0),
  secret: base64,
  masterKey: base64,
  version: z.int(),
  maxPackSize: z
    .int()
    .optional()
    .default(0)
    .transform((value) => value || 20 * MIB),
  indexVersion: z
    .int()
    .optional()
    .default(0)
    .transform((value) => value || 1),
  epochParameters: epochSchema.optional().default(epochSchema.parse({})),
  enablePasswordChange: z.boolean().optional().default(false),
  splitter: z.string().optional().default(''),
  upgradeLock: upgradeLockSchema.nullish(),
  requiredFeatures: z.array(requiredFeatureSchema).nullish(),
});
export type RepositoryParameters = z.infer<typeof parametersSchema>;

/** Features that Kopia v0.23.1 knows (repo/format/content_format.go). */
const KNOWN_FEATURES = ['index-v1', 'index-v2'];
const VERSIONS = [1, 2, 3];

export interface SupportCheck {
  nowNs: bigint;
  /** Called for each unknown feature that is harmless. */
  warn: (message: string) => void;
}

/** Throws `UNSUPPORTED_REPOSITORY` or `REPOSITORY_LOCKED`, and names the unsupported feature. */
export function assertSupported(parameters: RepositoryParameters, check: SupportCheck): void {
  const refuse = (what: string): never => {
    throw new CodedError('UNSUPPORTED_REPOSITORY', `this repository cannot be opened: ${what}`);
  };
  const { version, hash, encryption, splitter, indexVersion } = parameters;
  if (!VERSIONS.includes(version)) {
    refuse(`its format version is ${version}, and 1 to 3 are supported`);
  }
  if (parameters.ecc !== '' && parameters.eccOverheadPercent > 0) {
    refuse(`it uses error correction (ECC ${parameters.ecc}), which is not supported`);
  }
  if (!HASH_NAMES.includes(hash)) refuse(`its hash "${hash}" is not known`);
  if (!ENCRYPTION_NAMES.includes(encryption)) refuse(`its encryption "${encryption}" is not known`);
  if (splitter !== '' && SPLITTERS.get(splitter) === undefined) {
    refuse(`its splitter "${splitter}" is not known`);
  }
  if (indexVersion !== 1 && indexVersion !== 2) refuse(`its index version is ${indexVersion}`);
  for (const { feature, ifNotUnderstood } of parameters.requiredFeatures ?? []) {
    if (KNOWN_FEATURES.includes(feature)) continue;
    const text = `it requires the feature "${feature}" ${ifNotUnderstood.message ?? ''}`.trim();
    if (ifNotUnderstood.warn === true) check.warn(text);
    else refuse(text);
  }
  if (parameters.upgradeLock) assertUnlocked(parameters.upgradeLock, check.nowNs);
}

/** Kopia's rule (repo/format/upgrade_lock.go): writers must finish before the upgrade begins. */
function assertUnlocked(lock: z.infer<typeof upgradeLockSchema>, nowNs: bigint): void {
  const drain = BigInt(lock.maxPermittedClockDrift + 2 * lock.ioDrainTimeout);
  const notice = BigInt(lock.advanceNoticeDuration);
  const startsAt = parseGoTime(lock.creationTime) + notice - drain;
  if (notice < drain || nowNs >= startsAt) {
    throw new CodedError(
      'REPOSITORY_LOCKED',
      `the repository is locked for a format upgrade by "${lock.ownerID}"; try again when the upgrade is over`,
      { retry: 'backoff' },
    );
  }
}
