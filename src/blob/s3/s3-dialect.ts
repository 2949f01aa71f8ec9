import assert from 'node:assert';
import { isDeepStrictEqual } from 'node:util';
import { CodedError, isCode, messageOf } from '../../base/index.ts';
import type { BlobId } from '../storage.ts';

export type Checksum = 'crc32' | 'sha256' | 'md5' | 'none';

/** How the body of a put is vouched for. */
export interface PutForm {
  readonly checksum: Checksum;
  /** The signature covers the body. Otherwise the request says `UNSIGNED-PAYLOAD`. */
  readonly signsBody: boolean;
}

/** Whether a read asks for the checksum that the service stored. */
export interface GetForm {
  readonly asksChecksum: boolean;
}

/** The checksum of a request that sets a lock: the protocol demands one. */
export interface LockForm {
  readonly checksum: 'CRC32' | 'MD5';
}

export interface ListForm {
  /** ListObjectsV2, or the older ListObjects. */
  readonly version: 1 | 2;
  /**
   * Lists the whole folder and filters here, for services that take no prefix without a final `/`.
   */
  readonly wholeFolder: boolean;
}

/** Statuses of services that do not understand a request. */
const NOT_UNDERSTOOD = new Set([400, 403, 404, 405, 411, 417, 501]);
/**
 * Codes with such a status that leave nothing to guess: another form of the request gets the same
 * answer.
 */
const EXPLAINED =
  /^(InvalidAccessKeyId|Expired|InvalidToken|TokenRefresh|Request(Timeout|TimeTooSkewed|Expired)|BadDigest|IncompleteBody|XAmzContentChecksumMismatch|NoSuch(Bucket|Key|Upload)|InvalidBucketName|InvalidPart|KeyTooLong|EntityTooLarge|InvalidStorageClass|AuthorizationHeaderMalformed|InvalidRegion|IllegalLocation|PermanentRedirect|QuotaExceeded|KMS|AllAccessDisabled|InvalidObjectState)/;

/** Whether the service may have refused only the form of a request. */
export const isNotUnderstood = (error: unknown): boolean =>
  !isCode(error, 'BLOB_EXISTS') &&
  NOT_UNDERSTOOD.has(statusOf(error)) &&
  !EXPLAINED.test(serviceCodeOf(error));

/**
 * A denied request is denied in every form. A signature may be wrong because the service signs
 * less, or more.
 */
const isUnknownForm = (error: unknown): boolean =>
  isNotUnderstood(error) &&
  (statusOf(error) !== 403 || serviceCodeOf(error) === 'SignatureDoesNotMatch');

const statusOf = (error: unknown): number =>
  error instanceof CodedError ? Number(error.facts.status) : Number.NaN;

const serviceCodeOf = (error: unknown): string =>
  error instanceof CodedError ? String(error.facts.serviceCode ?? '') : '';

/**
 * The forms that a kind of request can have, from the best to the plainest. If the service refuses
 * one, the next one is tried. The first form that works is kept, so a request that fails later is
 * not tried in other forms.
 */
export class Forms<F> {
  readonly #forms: readonly F[];
  readonly #isRefusal: (error: unknown) => boolean;
  #at = 0;
  #isKnown = false;

  constructor(forms: readonly [F, ...F[]], isRefusal: (error: unknown) => boolean) {
    this.#forms = forms;
    this.#isRefusal = isRefusal;
  }

  get current(): F {
    return this.#forms[this.#at] as F;
  }

  /** Undefined until a form has worked. */
  get known(): F | undefined {
    return this.#isKnown ? this.current : undefined;
  }

  /** From now on only this form is used; `form` equals one of the given ones. */
  keep(form: F): void {
    const at = this.#forms.findIndex((each) => isDeepStrictEqual(each, form));
    assert(at >= 0, 'a form that was not given');
    this.#at = at;
    this.#isKnown = true;
  }

  /**
   * Sends a request in the form that is known, or tries them. `mayHelp` skips forms that cannot
   * change the answer. With `keeps: false` success proves nothing about the form. If every form is
   * refused, throws the first refusal.
   */
  async run<T>(
    send: (form: F) => Promise<T>,
    {
      mayHelp = () => true,
      keeps = true,
    }: { mayHelp?: (next: F, refused: F, error: unknown) => boolean; keeps?: boolean } = {},
  ): Promise<T> {
    if (this.#isKnown) return send(this.current);
    let refused = this.current;
    let first: unknown;
    let last: unknown;
    for (const form of this.#forms.slice(this.#at)) {
      if (last !== undefined && !mayHelp(form, refused, last)) continue;
      try {
        const result = await send(form);
        if (keeps && !this.#isKnown) this.keep(form);
        return result;
      } catch (error) {
        if (!this.#isRefusal(error)) throw error;
        first ??= error;
        last = error;
        refused = form;
      }
    }
    throw first;
  }
}

/**
 * Forms of puts for a `checksum` setting. Each of them either names a checksum, or signs the body.
 */
export function putForms(setting: Checksum | 'auto'): Forms<PutForm> {
  const plain = (checksum: Checksum): PutForm => ({ checksum, signsBody: false });
  const signed = (checksum: Checksum): PutForm => ({ checksum, signsBody: true });
  if (setting !== 'auto') return new Forms([plain(setting), signed(setting)], isUnknownForm);
  return new Forms(
    [plain('crc32'), plain('md5'), signed('crc32'), signed('md5'), signed('none')],
    isUnknownForm,
  );
}

const ABOUT_CHECKSUMS = /x-amz-checksum|x-amz-sdk-checksum|content-md5/i;
const ABOUT_SIGNED_BODIES = /unsigned.payload|x-amz-content-sha256|XAmzContentSHA256Mismatch/i;

/** Whether another form of a put changes the feature that the service complained about. */
export function mayHelpPut(next: PutForm, refused: PutForm, error: unknown): boolean {
  const text = `${serviceCodeOf(error)} ${messageOf(error)}`;
  if (ABOUT_SIGNED_BODIES.test(text)) return next.signsBody && !refused.signsBody;
  if (ABOUT_CHECKSUMS.test(text)) return next.checksum !== refused.checksum;
  return true;
}

/** Forms of requests whose errors `describe` has not described yet. */
type Describe = (error: unknown) => CodedError;

export const getForms = (setting: Checksum | 'auto', describe: Describe): Forms<GetForm> =>
  setting === 'none' || setting === 'md5'
    ? new Forms([{ asksChecksum: false }], () => false)
    : new Forms([{ asksChecksum: true }, { asksChecksum: false }], (error) =>
        isUnknownForm(describe(error)),
      );

/** A denied list is denied in every form. */
const isUnknownList =
  (describe: Describe) =>
  (error: unknown): boolean => {
    const described = describe(error);
    return isUnknownForm(described) && statusOf(described) !== 403;
  };

export const folderListForms = (describe: Describe): Forms<ListForm> =>
  new Forms<ListForm>(
    [
      { version: 2, wholeFolder: false },
      { version: 1, wholeFolder: false },
    ],
    isUnknownList(describe),
  );

export const listForms = (describe: Describe): Forms<ListForm> =>
  new Forms<ListForm>(
    [
      { version: 2, wholeFolder: false },
      { version: 1, wholeFolder: false },
      { version: 2, wholeFolder: true },
      { version: 1, wholeFolder: true },
    ],
    isUnknownList(describe),
  );

export function lockForms(setting: Checksum | 'auto'): Forms<LockForm> {
  if (setting === 'md5' || setting === 'none') return new Forms([{ checksum: 'MD5' }], () => false);
  return new Forms([{ checksum: 'CRC32' }, { checksum: 'MD5' }], isUnknownForm);
}

/**
 * A service that answers so many conditional puts with a conflict does not support them. Our
 * choice.
 */
const CONFLICTS_MAX = 3;
const CONFLICT = /^(OperationAborted|ConditionalRequestConflict)$/;

/**
 * Puts that the service must refuse if the blob exists (`If-None-Match: *`). Not every service
 * knows them.
 */
export class ConditionalPuts {
  readonly #exists: (id: BlobId) => Promise<boolean>;
  /**
   * Whether a conditional put has succeeded. The service then knows the condition, or ignores it.
   */
  #isKnown = false;
  #conflicts = 0;

  constructor(exists: (id: BlobId) => Promise<boolean>) {
    this.#exists = exists;
  }

  /**
   * Runs a conditional put. Throws `BLOB_EXISTS` if the blob is there. Throws `UNSUPPORTED_PUT` if
   * the service refuses the condition, or claims that a blob exists which does not.
   */
  async run(id: BlobId, put: () => Promise<void>): Promise<void> {
    for (let tries = 1; ; tries++) {
      try {
        await put();
        this.#isKnown = true;
        return;
      } catch (error) {
        if (this.#isKnown) throw error;
        if (isNotUnderstood(error) || isCode(error, 'BLOB_NOT_FOUND'))
          throw noConditionalPut(error);
        const isConflict = CONFLICT.test(serviceCodeOf(error));
        if (isConflict && ++this.#conflicts > CONFLICTS_MAX) throw noConditionalPut(error);
        if (!isCode(error, 'BLOB_EXISTS')) throw error;
        if (await this.#exists(id).catch(() => true)) throw error;
        // Somebody may have deleted it in between, so only the second such answer counts.
        if (tries > 1) throw noConditionalPut(error);
      }
    }
  }
}

const noConditionalPut = (cause: unknown): CodedError =>
  new CodedError(
    'UNSUPPORTED_PUT',
    `this service does not support put-if-absent (If-None-Match): ${messageOf(cause)}`,
    { cause },
  );
