import { type LocationSurvey, signingBy, surveyLocation } from '../../archive/index.ts';
import { type Logger, messageOf, redactAndCut, SECOND_NS, Stopwatch } from '../../base/index.ts';
import { parseBackupStorageLocation } from '../../config/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  type BackupStorageLocation,
  type KubeClient,
} from '../../kube/index.ts';
import { repositoryPasswords } from '../../repository-access/index.ts';
import type { LocationTrust, TrustSource } from '../../server/index.ts';
import { withBucketOfLocation } from '../backups/bucket.ts';
import type { Session } from '../backups/session.ts';
import { knownObjects } from '../locations/check.ts';

export interface StoredSignaturesOptions {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly logger: Logger;
}

/** Each check reads two small files per backup. Our choice. */
const EVERY_NS = 600n * SECOND_NS;
const READING_MS = 120_000;
const WRONG = ['WrongSignature', 'NotSigned', 'MissingBackup'];

/** Checks signatures in all locations at most every ten minutes, if there are visitors. */
export class StoredSignatures implements TrustSource, AsyncDisposable {
  readonly #options: StoredSignaturesOptions;
  readonly #stop = new AbortController();
  readonly #known = new Map<string, LocationTrust>();
  #age: Stopwatch | undefined;
  #reading: Promise<void> | undefined;

  constructor(options: StoredSignaturesOptions) {
    this.#options = options;
  }

  look(): ReadonlyMap<string, LocationTrust> {
    const isOld = this.#age === undefined || this.#age.elapsedNs >= EVERY_NS;
    if (isOld && !this.#reading && !this.#stop.signal.aborted) {
      this.#reading = this.#read().finally(() => {
        this.#age = new Stopwatch(this.#options.client.clock);
        this.#reading = undefined;
      });
    }
    return this.#known;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#reading;
  }

  /** Never rejects. If a location cannot be read, its old state stays. */
  async #read(): Promise<void> {
    const { client, namespace, logger } = this.#options;
    const stop = this.#stop.signal;
    try {
      const session = { client, namespace, signal: stop };
      // Signatures cannot be checked without a password, so no bucket is opened.
      if (!(await signingBy(await repositoryPasswords(session)))) return;
      const locations = await client.list(BACKUP_STORAGE_LOCATIONS, { namespace, signal: stop });
      const names = new Set(locations.map(({ metadata }) => metadata.name));
      for (const name of this.#known.keys()) if (!names.has(name)) this.#known.delete(name);
      for (const location of locations) await this.#readOne(location);
    } catch (error) {
      if (!stop.aborted) logger.debug({ error: messageOf(error) }, NOT_READ);
    }
  }

  async #readOne(object: BackupStorageLocation): Promise<void> {
    const { client, namespace, logger } = this.#options;
    const { name } = object.metadata;
    const signal = AbortSignal.any([this.#stop.signal, AbortSignal.timeout(READING_MS)]);
    const session: Session = { client, namespace, signal };
    try {
      const location = parseBackupStorageLocation({ ...object, kind: 'BackupStorageLocation' });
      const nowNs = client.clock.nowNs();
      const survey = await withBucketOfLocation(location, session, (bucket) =>
        surveyLocation(bucket, () => knownObjects(name, session), { signal, nowNs }),
      );
      this.#known.set(name, trustOf(survey));
    } catch (error) {
      if (this.#stop.signal.aborted) return;
      logger.debug({ location: name, error: redactAndCut(messageOf(error)) }, NOT_READ);
    }
  }
}

const NOT_READ = 'status page: signatures cannot be read from the bucket';

const trustOf = ({ states, findings }: LocationSurvey): LocationTrust => ({
  states,
  wrong: findings
    .filter(({ kind, harm }) => harm && WRONG.includes(kind))
    .map(({ name, text }) => ({ name, text: redactAndCut(text) })),
});
