import { Secret } from '../../../src/base/index.ts';
import {
  createFormat,
  defaultParameters,
  FORMAT_BLOB,
  openRepository,
  putMaintenanceParameters,
} from '../../../src/repository/index.ts';
import { deriveFormatKey, openFormat, sealFormat } from '../../../src/repository/format/keys.ts';
import { policySchema, putPolicy } from '../../../src/snapshot/index.ts';
import { Random, VirtualTime } from '../virtual-time.ts';
import { Bucket, BucketClient } from './bucket.ts';
import { Machine } from './machine.ts';
import { PASSWORD } from './oracle.ts';
import { Host, Process } from './process.ts';
import { Volumes } from './volume.ts';

/** The parts of a seed's repository that differ from Kopia's defaults. */
export interface Shape {
  readonly packBytes: number;
  /** Index blobs per epoch. Kopia's 20 would take weeks of these small uploads. */
  readonly epochBlobs: number;
  readonly rangeEpochs: number;
}

const QUIET = { latencyMs: 0, slowMs: 0, slow: 0, refused: 0, lost: 0, late: 0, lies: 0 };
const HASH = 'BLAKE2B-256-128';
/** The splitter with the smallest chunks. */
const SPLITTER = 'DYNAMIC-128K-BUZHASH';

let made: Promise<ReadonlyMap<string, Uint8Array>> | undefined;

/** A new repository with its policies, made once: all seeds start with the same bytes. */
export function templateBlobs(): Promise<ReadonlyMap<string, Uint8Array>> {
  made ??= makeTemplate();
  return made;
}

async function makeTemplate(): Promise<ReadonlyMap<string, Uint8Array>> {
  const time = new VirtualTime(1);
  using machine = new Machine(time, 1);
  machine.install(new Volumes());
  const host = new Host('maintainer-a');
  const process = new Process({ ...IDLE, time, host, name: 'setup' });
  const tell = { count: () => undefined, trace: () => undefined };
  const bucket = new Bucket(time, new Random(1), QUIET, tell);
  const storage = new BucketClient(bucket);
  const format = { hash: HASH, encryption: 'AES256-GCM-HMAC-SHA256', version: 3 } as const;
  await createFormat(
    storage,
    new Secret(PASSWORD),
    { ...format, splitter: SPLITTER },
    process.randomBytes,
  );
  const repository = await openRepository({
    storage,
    password: new Secret(PASSWORD),
    client: { username: 'sim', hostname: host.name },
    clock: process.clock,
    random: process.randomBytes,
  });
  const policy = policySchema.parse({
    retention: {
      keepLatest: 2,
      keepHourly: 0,
      keepDaily: 0,
      keepWeekly: 0,
      keepMonthly: 0,
      keepAnnual: 0,
    },
    files: { ignoreDotFiles: ['.kopiaignore'] },
    compression: { compressorName: 'none' },
  });
  await putPolicy(repository, { host: '', userName: '', path: '' }, policy);
  const client = { username: 'sim', hostname: host.name };
  await putMaintenanceParameters(repository, defaultParameters(client));
  await repository.flush();
  await repository.close();
  return new Map([...bucket.blobs].map(([id, { bytes }]) => [id, bytes]));
}

const IDLE = {
  seed: 1,
  tickMs: 1,
  taskMs: 0,
  readMs: 0,
  threadDeath: 0,
  killAtWait: 0,
} as const;

/** Fills an empty bucket, with the seed's packs and epochs. Needs the machine of the seed. */
export async function fillBucket(
  bucket: Bucket,
  template: ReadonlyMap<string, Uint8Array>,
  shape: Shape,
): Promise<void> {
  for (const [id, bytes] of template) bucket.put(id, bytes);
  const outer = JSON.parse(Buffer.from(template.get(FORMAT_BLOB) ?? '').toString()) as {
    uniqueID: string;
    keyAlgo: string;
    encryptedBlockFormat: string;
  };
  const uniqueId = Buffer.from(outer.uniqueID, 'base64');
  const key = await deriveFormatKey(new Secret(PASSWORD), outer.keyAlgo, uniqueId);
  const sealed = Buffer.from(outer.encryptedBlockFormat, 'base64');
  const inner = JSON.parse(openFormat(key, uniqueId, sealed).toString()) as {
    format: { maxPackSize: number; epochParameters: Record<string, number> };
  };
  inner.format.maxPackSize = shape.packBytes;
  inner.format.epochParameters.EpochAdvanceOnCountThreshold = shape.epochBlobs;
  inner.format.epochParameters.FullCheckpointFrequency = shape.rangeEpochs;
  const again = sealFormat(key, uniqueId, Buffer.from(JSON.stringify(inner)));
  const changed = { ...outer, encryptedBlockFormat: again.toString('base64') };
  bucket.put(FORMAT_BLOB, Buffer.from(JSON.stringify(changed)));
}
