import assert from 'node:assert';
import { isDeepStrictEqual } from 'node:util';
import { CodedError, isCode, messageOf } from '../../base/index.ts';
import type { BlobId } from '../storage.ts';

export type Checksum = 'crc32' | 'sha256' | 'md5' | 'none';

/** How a put's body is verified. */
export interface PutForm {
  readonly checksum: Checksum;
  /** The signature covers the body. Otherwise the request has `UNSIGNED-PAYLOAD`. */
  readonly signsBody: boolean;
}

/** Whether a read requests the stored checksum. */
export interface GetForm {
  readonly asksChecksum: boolean;
}

/** Checksum of a request that sets a lock. The protocol requires one. */
export interface LockForm {
  readonly checksum: 'CRC32' | 'MD5';
}

export interface ListForm {
  /** ListObjectsV2, or the older ListObjects. */
  readonly version: 1 | 2;
  /** Lists the folder and filters here, for services whose prefixes must end with `/`. */
  readonly wholeFolder: boolean;
}

/** Statuses of services that do not understand a request. */
const NOT_UNDERSTOOD = new Set([400, 403, 404, 405, 411, 417, 501]);
/** Codes with such a status that are certain: another form of the request gets the same answer. */
const EXPLAINED =
  /^(InvalidAccessKeyId|Expired|InvalidToken|TokenRefresh|Request(Timeout|TimeTooSkewed|Expired)|BadDigest|IncompleteBody|XAmzContentChecksumMismatch|NoSuch(Bucket|Key|Upload)|InvalidBucketName|InvalidPart|KeyTooLong|EntityTooLarge|InvalidStorageClass|AuthorizationHeaderMalformed|InvalidRegion|IllegalLocation|PermanentRedirect|QuotaExceeded|KMS|AllAccessDisabled|InvalidObjectState)/;

/** Whether the service may have refused only the form of a request. */
export const isNotUnderstood = (error: unknown): boolean =>
  !isCode(error, 'BLOB_EXISTS') &&
  NOT_UNDERSTOOD.has(statusOf(error)) &&
  !EXPLAINED.test(serviceCodeOf(error));

/** Permissions do not depend on the form. A wrong signature may cover too little, or too much. */
const isUnknownForm = (error: unknown): boolean =>
  isNotUnderstood(error) &&
  (statusOf(error) !== 403 || serviceCodeOf(error) === 'SignatureDoesNotMatch');

const statusOf = (error: unknown): number =>
  error instanceof CodedError ? Number(error.facts.status) : Number.NaN;

const serviceCodeOf = (error: unknown): string =>
  error instanceof CodedError ? String(error.facts.serviceCode ?? '') : '';

/**
 * The forms of a kind of request, from the best to the plainest. If the service refuses a form, the
 * next form is tried. The first success fixes the form, so a later failure does not try other
 * forms.
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

  /** Uses only this form from now on. `form` must equal a given form. */
  keep(form: F): void {
    const at = this.#forms.findIndex((each) => isDeepStrictEqual(each, form));
    assert(at >= 0, 'a form that was not given');
    this.#at = at;
    this.#isKnown = true;
  }

  /**
   * Sends a request in the known form, or tries the forms. `mayHelp` skips forms that cannot change
   * the answer. With `keeps: false` a success proves nothing about the form. If every form is
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

/** Forms of puts for a `checksum` setting. Each form names a checksum, or signs the body. */
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

/** Whether another form of a put changes the feature that the service refused. */
export function mayHelpPut(next: PutForm, refused: PutForm, error: unknown): boolean {
  const text = `${serviceCodeOf(error)} ${messageOf(error)}`;
  if (ABOUT_SIGNED_BODIES.test(text)) return next.signsBody && !refused.signsBody;
  if (ABOUT_CHECKSUMS.test(text)) return next.checksum !== refused.checksum;
  return true;
}

/** Describes raw errors of requests. */
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

/** After this many conflicts, a service does not support conditional puts. Our choice. */
const CONFLICTS_MAX = 3;
const CONFLICT = /^(OperationAborted|ConditionalRequestConflict)$/;

/** Puts that must fail if the blob exists (`If-None-Match: *`). Not every service supports them. */
export class ConditionalPuts {
  readonly #exists: (id: BlobId) => Promise<boolean>;
  /** After a success, the service supports the condition, or ignores it. */
  #isKnown = false;
  #conflicts = 0;

  constructor(exists: (id: BlobId) => Promise<boolean>) {
    this.#exists = exists;
  }

  /**
   * Runs a conditional put. Throws `BLOB_EXISTS` if the blob exists. Throws `UNSUPPORTED_PUT` if
   * the service refuses the condition, or reports a missing blob as existing.
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
        // The blob may have been deleted in between, so only the second such answer counts.
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
