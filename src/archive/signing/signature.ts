import { createHash, createHmac, hkdfSync, scrypt, timingSafeEqual } from 'node:crypto';
import { promisify } from 'node:util';
import { z } from 'zod';
import { CodedError, goJson } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { SIGNATURE, SIGNED } from '../../kube/index.ts';
import type { FileKey } from '../encryption/encrypted-body.ts';
import { isFinal } from '../backup-state.ts';

/**
 * The author of a backup's files. `signed`: an owner of the repository password. `unsigned`:
 * Velero, or a version of Longshore without signatures, wrote or finished them. `wrong`: they were
 * changed since they were signed. `unknown`: the reader lacks the password that signed them.
 */
export type SignatureState = 'signed' | 'unsigned' | 'wrong' | 'unknown';

export const signatureSchema = z.looseObject({
  version: z.literal(1),
  /** Identifies the signing key, and reveals nothing else about it: 16 hexadecimal digits. */
  key: z.string(),
  /** States of the Backup that the checksums cover. */
  states: z.array(z.string()),
  /** SHA-256 of the checksums, in hexadecimal digits. */
  sha256: z.string(),
  /** HMAC-SHA256 of the name of the backup and the fields above, in hexadecimal digits. */
  mac: z.string(),
});
type Signature = z.infer<typeof signatureSchema>;

const deriveSlowly = promisify(
  (password: string, done: (error: Error | null, key: Buffer) => void): void => {
    const cost = { N: 65_536, r: 8, p: 1, maxmem: 128 * 1024 * 1024 };
    scrypt(password, 'longshore.io/backup-signature', 32, cost, done);
  },
);

/**
 * Derives the key that signs backups from the repository password. The first step is scrypt:
 * guessing passwords with a signature must not be faster than with the repository.
 *
 * @returns 32 bytes
 */
export async function signingKey(password: string): Promise<Buffer> {
  const slow = await deriveSlowly(password);
  return Buffer.from(hkdfSync('sha256', slow, '', 'longshore backup signature 1', 32));
}

/** Signs the files of backups, and checks signatures. */
export class Signing {
  readonly #key: Buffer | undefined;
  readonly #earlier: readonly Buffer[];

  /**
   * `key`: undefined if nothing can be signed. `earlier`: keys of other passwords, such as those
   * before a change. They only check.
   */
  constructor(key: Buffer | undefined, earlier: readonly Buffer[] = []) {
    this.#key = key;
    this.#earlier = earlier;
  }

  get canSign(): boolean {
    return this.#key !== undefined;
  }

  /** Signs the checksums of a backup. `payload` is a JSON value. Undefined without a key. */
  sign(name: string, payload: Signed): Signature | undefined {
    if (!this.#key) return undefined;
    const about = { states: [...payload.states], sha256: digestOf(payload) };
    return {
      version: 1,
      key: idOf(this.#key),
      ...about,
      mac: macOf(this.#key, name, about).toString('hex'),
    };
  }

  /**
   * `state`: the state of the Backup beside the checksums. Velero, or an earlier version of
   * Longshore, may finish a backup: it replaces files and keeps the old signature. A Backup that
   * had ended when it was signed does not change.
   */
  check(name: string, payload: Signed, signature: Signature, state: string): SignatureState {
    const key = this.#keys.find((each) => idOf(each) === signature.key);
    if (!key) return 'unknown';
    const right = macOf(key, name, signature);
    const told = Buffer.from(signature.mac, 'hex');
    if (right.length !== told.length || !timingSafeEqual(right, told)) return 'wrong';
    const isSame = signature.sha256 === digestOf(payload) && signature.states.includes(state);
    if (isSame) return 'signed';
    return signature.states.every(isOver) ? 'wrong' : 'unsigned';
  }

  /** The key that encrypts files; undefined without a key. */
  get fileKey(): FileKey | undefined {
    return this.#key && { id: idOf(this.#key), key: this.#key };
  }

  /** The key with this ID, which decrypts files. */
  fileKeyOf(id: string): Buffer | undefined {
    return this.#keys.find((each) => idOf(each) === id);
  }

  get #keys(): readonly Buffer[] {
    return this.#key ? [this.#key, ...this.#earlier] : this.#earlier;
  }
}

/** The checksums of a backup, without their signature. */
type Signed = Readonly<Record<string, unknown>> & { readonly states: readonly string[] };

const isOver = (state: string): boolean => isFinal({ status: { phase: state.split(' ')[1] } });

const digestOf = (payload: Signed): string =>
  createHash('sha256').update(goJson(payload)).digest('hex');

const idOf = (key: Buffer): string =>
  createHmac('sha256', key).update('longshore backup signature key').digest('hex').slice(0, 16);

/** The name is covered: files of another backup have a wrong signature. */
const macOf = (
  key: Buffer,
  name: string,
  { states, sha256 }: Pick<Signature, 'states' | 'sha256'>,
): Buffer =>
  createHmac('sha256', key)
    .update(`longshore backup signature 1\n${goJson([name, states, sha256])}`)
    .digest();

/** Passwords of the repositories, and keys of passwords that they had before. */
export interface SigningPasswords {
  readonly current: string;
  /** The next or the previous password, while the password is being changed. */
  readonly others: readonly string[];
  /** Results of {@link signingKey}, 64 hexadecimal digits each. */
  readonly earlierKeys: readonly string[];
}

const PASSWORDS_MAX = 8;
/** Deriving a key takes 0.2 s, and buckets are opened often. */
const derived = new Map<string, Promise<Buffer>>();

function keyOf(password: string): Promise<Buffer> {
  const known = derived.get(password);
  if (known) return known;
  if (derived.size >= PASSWORDS_MAX) derived.clear();
  const key = signingKey(password);
  derived.set(password, key);
  key.catch(() => derived.delete(password));
  return key;
}

/** Velero's password of repositories. Anyone can sign with it. */
export const WELL_KNOWN_PASSWORD = 'static-passw0rd';

/** The well-known password signs nothing: it is public. Undefined without any key. */
export async function signingBy(
  passwords: SigningPasswords | undefined,
): Promise<Signing | undefined> {
  if (!passwords) return undefined;
  const secretKeyOf = async (password: string): Promise<Buffer | undefined> =>
    password === WELL_KNOWN_PASSWORD ? undefined : keyOf(password);
  const all = await Promise.all([passwords.current, ...passwords.others].map(secretKeyOf));
  const [current, ...others] = all;
  const earlier = passwords.earlierKeys.map((each) => Buffer.from(each, 'hex'));
  const checking = [...others.filter((each) => each !== undefined), ...earlier];
  return current || checking.length > 0 ? new Signing(current, checking) : undefined;
}

/** How the backups of a location are signed. */
export interface LocationSigning {
  /** Undefined if the password is unknown. */
  readonly signing: Signing | undefined;
  readonly isRequired: boolean;
  readonly encrypts?: boolean;
}

/** Annotation of a Backup whose files are used with any signature. A person sets it. */
export const IGNORE_SIGNATURE = 'longshore.io/ignore-signature';

/** Many callers pass a bucket on and need no key, so the key belongs to the bucket. */
const byBucket = new WeakMap<Bucket, LocationSigning>();

export function signWith(bucket: Bucket, signing: LocationSigning): void {
  byBucket.set(bucket, signing);
}

export const signingOf = (bucket: Bucket): LocationSigning | undefined => byBucket.get(bucket);

/** The annotations of a Backup in the cluster. */
export interface Annotated {
  readonly metadata: { readonly annotations?: Readonly<Record<string, string>> | undefined };
}

export const canSign = (bucket: Bucket): boolean => byBucket.get(bucket)?.signing?.canSign === true;

export const encryptsFiles = (bucket: Bucket): boolean => byBucket.get(bucket)?.encrypts === true;

export function checksSignatures(bucket: Bucket): boolean {
  const { signing, isRequired } = byBucket.get(bucket) ?? {};
  return signing !== undefined || isRequired === true;
}

export interface StoredFiles {
  readonly bucket: Bucket;
  readonly name: string;
  readonly signature: SignatureState;
  /** The signature itself; undefined for other states than `signed`. */
  readonly mac?: string | undefined;
}

/**
 * Throws `WRONG_SIGNATURE` for changed or replaced files. Throws `NOT_SIGNED` for unsigned files,
 * if the Backup in the cluster had a signature. {@link IGNORE_SIGNATURE} overrules both.
 */
export function assertUnchanged(
  { bucket, name, signature: state, mac }: StoredFiles,
  known?: Annotated,
): void {
  const { annotations } = known?.metadata ?? {};
  if (annotations?.[IGNORE_SIGNATURE] === 'true') return;
  const wayOut = `To use it nevertheless, annotate the Backup with ${IGNORE_SIGNATURE}=true`;
  if (state === 'signed') {
    if ((annotations?.[SIGNATURE] ?? mac) === mac) return;
    const text = `somebody brought back files of an earlier state of backup ${name}: their signature differs from its annotation ${SIGNATURE}. ${wayOut}`;
    throw new CodedError('WRONG_SIGNATURE', text);
  }
  if (state === 'wrong') {
    const text = `the signature of backup ${name} is wrong: its files were changed after they were signed. ${wayOut}`;
    throw new CodedError('WRONG_SIGNATURE', text);
  }
  const canCheck = byBucket.get(bucket)?.signing !== undefined;
  if (!canCheck || annotations?.[SIGNED] !== 'true') return;
  const text = `backup ${name} was signed, and this cluster cannot find its signature any more: somebody replaced its files, or the Secret of the repository password. ${wayOut}`;
  throw new CodedError('NOT_SIGNED', text);
}

/**
 * Throws `NOT_SIGNED`, retryable, while the key that signed the files is missing. A tool may be
 * replacing the Secret of the password at this moment. Backups without the mark of a signature
 * pass.
 */
export function assertCheckable(
  { name, signature: state }: Pick<StoredFiles, 'name' | 'signature'>,
  known: Annotated,
): void {
  const { annotations } = known.metadata;
  const isSigned = annotations?.[SIGNED] === 'true' && annotations[IGNORE_SIGNATURE] !== 'true';
  if (state === 'unknown' && isSigned) throw keyMissing(name);
}

/** The files stay unchanged until the key is back. */
export const keyMissing = (name: string): CodedError =>
  new CodedError(
    'NOT_SIGNED',
    `the key that signed backup ${name} is not in this cluster. Check the Secrets of the repository password and of the archive keys, or add the key with "longshore repository add-archive-keys"`,
    { retry: 'backoff' },
  );

/** Like {@link assertUnchanged}. Also throws `NOT_SIGNED` if the location requires signatures. */
export function assertTrusted(files: StoredFiles, known?: Annotated): void {
  const { bucket, name, signature: state } = files;
  assertUnchanged(files, known);
  if (state === 'signed' || byBucket.get(bucket)?.isRequired !== true) return;
  if (known?.metadata.annotations?.[IGNORE_SIGNATURE] === 'true') return;
  const why =
    state === 'unknown' ? 'the repository password that signed it is not here' : 'it has none';
  const text = `backup ${name} needs a signature, since its location has the annotation longshore.io/require-signed: ${why}`;
  throw new CodedError('NOT_SIGNED', text);
}
