import {
  ListObjectsCommand,
  type ListObjectsCommandOutput,
  ListObjectsV2Command,
  type ListObjectsV2CommandInput,
  type ListObjectsV2CommandOutput,
  type S3Client,
} from '@aws-sdk/client-s3';
import type { CodedError } from '../../base/index.ts';
import { badListing, type ListedPage, rootOf } from '../http/listing.ts';
import type { PageRequest, Transfer } from '../http/remote-storage.ts';
import { PAGE_BYTES_MAX } from '../http/transfer.ts';
import { folderListForms, type Forms, type ListForm, listForms } from './s3-dialect.ts';

export interface S3ListsOptions {
  /** The place, for errors. */
  readonly storage: string;
  readonly bucket: string;
  /** The storage may replace it. */
  readonly client: () => S3Client;
  readonly describe: (error: unknown) => CodedError;
}

/** Lists keys in the way that the service supports. */
export class S3Lists {
  readonly #options: S3ListsOptions;
  readonly #forms: Forms<ListForm>;
  /** For prefixes that are a folder, because they may need another form. */
  readonly #folderForms: Forms<ListForm>;
  /** The bucket's name in the service's first answer. */
  #listedName: string | undefined;

  constructor(options: S3ListsOptions) {
    this.#options = options;
    this.#forms = listForms(options.describe);
    this.#folderForms = folderListForms(options.describe);
  }

  get adaptations(): string[] {
    const known = this.#forms.known ?? this.#folderForms.known;
    return [
      ...(known?.version === 1 ? ['no ListObjectsV2: ListObjects is used'] : []),
      ...(known?.wholeFolder === true
        ? ['no lists by the beginning of a name: whole folders are listed, which takes longer']
        : []),
    ];
  }

  async page(request: PageRequest, transfer: Transfer): Promise<ListedPage> {
    const { token, prefix } = request;
    const forms = /^$|\/$/.test(prefix) ? this.#folderForms : this.#forms;
    const answer = await forms.run((form) => this.#askPage(request, form, transfer));
    const { next, isTruncated } = answer;
    const { current } = forms;
    // The service answered in the older version.
    if (isTruncated && !next && token === undefined && current.version === 2) {
      forms.keep({ ...current, version: 1 });
      return this.page(request, transfer);
    }
    if (isTruncated && !next) {
      throw badListing(this.#options.storage, 'it says that there is more, but not how to get it');
    }
    return isTruncated ? answer : { ...answer, next: undefined };
  }

  async #askPage(
    { prefix, token, delimiter }: PageRequest,
    { version, wholeFolder }: ListForm,
    { signal: abortSignal, progress }: Transfer,
  ): Promise<ListedPage & { readonly isTruncated: boolean }> {
    const asked = wholeFolder ? prefix.slice(0, prefix.lastIndexOf('/') + 1) : prefix;
    const input = {
      Bucket: this.#options.bucket,
      Prefix: asked,
      ...(delimiter !== undefined && { Delimiter: delimiter }),
    };
    const watch = { storage: this.#options.storage, progress };
    const { client } = this.#options;
    const options = { abortSignal };
    let answer: Listing;
    if (version === 2) {
      const command = new ListObjectsV2Command({ ...input, ContinuationToken: token });
      watchRoot(command, 'ListBucketResult', watch);
      const page = await client().send(command, options);
      answer = { ...page, next: page.NextContinuationToken };
    } else {
      const command = new ListObjectsCommand({ ...input, Marker: token });
      watchRoot(command, 'ListBucketResult', watch);
      const page = await client().send(command, options);
      answer = { ...page, next: page.NextMarker ?? lastOf(page) };
    }
    this.#assertFits(answer, asked);
    const decode = answer.EncodingType === 'url' ? decodeKey : (key: string): string => key;
    const objects = (answer.Contents ?? []).map(
      ({ Key = '', Size = Number.NaN, LastModified }) => ({
        key: decode(Key),
        lengthBytes: Size,
        modified: LastModified,
      }),
    );
    const folders = (answer.CommonPrefixes ?? []).map(({ Prefix = '' }) => decode(Prefix));
    const isWanted = (key: string): boolean => key.startsWith(prefix) || !key.startsWith(asked);
    // Some services list the marker of a folder for every prefix below it.
    const isMarker = (key: string): boolean =>
      key !== prefix && key.endsWith('/') && prefix.startsWith(key);
    return {
      objects: objects.filter(({ key }) => !isMarker(key) && (!wholeFolder || isWanted(key))),
      folders: wholeFolder ? folders.filter(isWanted) : folders,
      next: version === 1 ? answer.next && decode(answer.next) : answer.next,
      isTruncated: answer.IsTruncated === true,
    };
  }

  /** An answer repeats its request. Throws `BAD_LISTING` for a list of another bucket or prefix. */
  #assertFits({ Name, Prefix, IsTruncated }: Listing, prefix: string): void {
    const fail = (what: string): never => {
      throw badListing(this.#options.storage, what);
    };
    // The name behind an access point or a Ceph tenant's bucket differs. Some services give none.
    if (Name !== undefined) this.#listedName ??= Name;
    const isOther = Name !== undefined && Name !== this.#listedName;
    if (isOther && Name !== this.#options.bucket) fail(`it is for bucket "${Name}"`);
    const isSame = Prefix === undefined || Prefix === prefix || decodeKey(Prefix) === prefix;
    if (!isSame) fail(`it is for prefix "${Prefix}", not of "${prefix}"`);
    if (IsTruncated === undefined) fail('it does not say whether there is more');
  }
}

/** Common fields of both versions. */
type Listing = Pick<
  ListObjectsV2CommandOutput,
  'Name' | 'Prefix' | 'IsTruncated' | 'Contents' | 'CommonPrefixes' | 'EncodingType'
> & { readonly next: string | undefined };

/** ListObjects continues after the last name of a page, unless the answer has a marker. */
const lastOf = ({
  Contents = [],
  CommonPrefixes = [],
}: ListObjectsCommandOutput): string | undefined =>
  [Contents.at(-1)?.Key, CommonPrefixes.at(-1)?.Prefix]
    .filter((name) => name !== undefined)
    .sort()
    .at(-1);

/** Decodes a key of a service that escapes keys. */
function decodeKey(key: string): string {
  try {
    return decodeURIComponent(key.replaceAll('+', ' '));
  } catch {
    return key;
  }
}

interface Request {
  readonly input: ListObjectsV2CommandInput;
  readonly request: unknown;
}

/** Used part of the library's deserialize handler. */
type Handler = (
  request: Request,
) => Promise<{ readonly response: unknown; readonly output: ListObjectsV2CommandOutput }>;

interface Watch {
  readonly storage: string;
  readonly progress: (lengthBytes: number) => void;
}

/**
 * Makes the command refuse an answer with another root element. The library takes any root, and
 * parses an HTML page as an empty list.
 */
function watchRoot(
  command: Pick<ListObjectsV2Command, 'middlewareStack'>,
  root: string,
  { storage, progress }: Watch,
): void {
  command.middlewareStack.addRelativeTo(
    (next: Handler) => async (request: Request) => {
      const result = await next(request);
      const response = result.response as { statusCode?: number; body?: unknown };
      if (response.statusCode !== 200) return result;
      const pieces: Uint8Array[] = [];
      let bytes = 0;
      for await (const piece of response.body as AsyncIterable<Uint8Array>) {
        progress(piece.length);
        pieces.push(piece);
        bytes += piece.length;
        if (bytes > PAGE_BYTES_MAX) throw badListing(storage, 'it is too long');
      }
      const body = Buffer.concat(pieces);
      const found = rootOf(body.subarray(0, 1000).toString('utf8'));
      if (found !== root) throw badListing(storage, describe(found));
      response.body = body;
      return result;
    },
    { relation: 'after', toMiddleware: 'deserializerMiddleware', name: 'watchRoot' },
  );
}

const describe = (root: string | undefined): string =>
  root === undefined ? 'it is not XML' : `it is <${root.slice(0, 100)}>`;
