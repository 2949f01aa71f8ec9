import { CodedError, isCode, MINUTE_NS, type Nanoseconds } from '../../base/index.ts';
import type { BlobId, PutOptions, WriteGuard } from '../../blob/index.ts';
import { type Format, loadFormat, type OpenFormatOptions } from './format-blob.ts';

/** Kopia: repo/format/format_blob_cache.go, DefaultRepositoryBlobCacheDuration (v0.23.1). */
const VALID_NS: Nanoseconds = 15n * MINUTE_NS;
/** Blobs that a retention locks (Kopia: repo/open.go, wrapLockingStorage). */
const LOCKED = /^(n|x|p|q|kopia\.repository|kopia\.blobcfg)/;

/**
 * Reloads the format every 15 minutes during writes, like Kopia. Throws `REPOSITORY_LOCKED` if a
 * format upgrade has started, and `REPOSITORY_UPGRADED` if it has finished. Changes of the
 * retention apply to the next put. Reads continue, because no parameter they need can change.
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
    // A clock that was set back must not delay the next check.
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

  /** Failures are not cached, so every later write checks again. */
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
      // Content keys stay the same, so a long backup need not start over.
      warn('the password of the repository was changed while it was open: upgrades and retention are not noticed until the next start'); // prettier-ignore
    }
    this.#checkedNs = nowNs;
  }
}

const isSameRetention = (a: Format['retention'], b: Format['retention']): boolean =>
  a?.mode === b?.mode && a?.periodNs === b?.periodNs;
