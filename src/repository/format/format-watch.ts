import { CodedError, isCode, MINUTE_NS, type Nanoseconds } from '../../base/index.ts';
import type { BlobId, PutOptions, WriteGuard } from '../../blob/index.ts';
import { type Format, loadFormat, type OpenFormatOptions } from './format-blob.ts';

/** Kopia: repo/format/format_blob_cache.go, DefaultRepositoryBlobCacheDuration (v0.23.1). */
const VALID_NS: Nanoseconds = 15n * MINUTE_NS;
/**
 * Blobs that are locked if the repository has a retention (Kopia: repo/open.go,
 * wrapLockingStorage).
 */
const LOCKED = /^(n|x|p|q|kopia\.repository|kopia\.blobcfg)/;

/**
 * Reads the format again every 15 minutes while a repository is written to, as Kopia does. Throws
 * `REPOSITORY_LOCKED` if a format upgrade has begun, and `REPOSITORY_UPGRADED` if it is over. A
 * retention that was switched on or off holds for the next put. Reads go on: they need no parameter
 * that can change.
 */
export class FormatWatch implements WriteGuard {
  readonly #options: OpenFormatOptions;
  readonly #opened: Format;
  #retention: Format['retention'];
  #checkedNs: Nanoseconds;
  #checking: Promise<void> | undefined;

  constructor(opened: Format, options: OpenFormatOptions) {
    this.#options = options;
    this.#opened = opened;
    this.#retention = opened.retention;
    this.#checkedNs = options.clock.nowNs();
  }

  async beforeWrite(): Promise<void> {
    const ageNs = this.#options.clock.nowNs() - this.#checkedNs;
    // A clock that was set back must not put the next look off.
    if (ageNs >= 0n && ageNs < VALID_NS) return;
    this.#checking ??= this.#check().finally(() => {
      this.#checking = undefined;
    });
    await this.#checking;
  }

  optionsOf(id: BlobId, { retention, ...options }: PutOptions): PutOptions {
    const isSame = this.#retention === this.#opened.retention || !LOCKED.test(id);
    const own = isSame ? retention : this.#retention;
    return own ? { ...options, retention: own } : options;
  }

  /** A refusal is not remembered, so every later write looks again. */
  async #check(): Promise<void> {
    const { clock, storage, warn } = this.#options;
    const nowNs = clock.nowNs();
    const { uniqueId, parameters } = this.#opened;
    try {
      const found = await loadFormat(this.#options);
      const { version, epochParameters } = found.parameters;
      const isUpgraded =
        version !== parameters.version ||
        epochParameters.Enabled !== parameters.epochParameters.Enabled;
      if (isUpgraded || !Buffer.from(found.uniqueId).equals(uniqueId)) {
        const text = `the format of the repository in ${storage.displayName} was upgraded while it was open: start again`;
        throw new CodedError('REPOSITORY_UPGRADED', text);
      }
      this.#retention = isSameRetention(found.retention, this.#opened.retention)
        ? this.#opened.retention
        : found.retention;
    } catch (error) {
      if (!isCode(error, 'WRONG_PASSWORD')) throw error;
      // The keys of the contents stay the same, so a backup of days need not begin anew.
      warn('the password of the repository was changed while it was open: upgrades and retention are not noticed until the next start'); // prettier-ignore
    }
    this.#checkedNs = nowNs;
  }
}

const isSameRetention = (a: Format['retention'], b: Format['retention']): boolean =>
  a?.mode === b?.mode && a?.periodNs === b?.periodNs;
