import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** Differences from Amazon's S3. Comments name a service that has the quirk. */
export type Quirk =
  | 'refuses checksum headers' // Backblaze B2
  | 'refuses the checksum mode' // Backblaze B2
  | 'checks no digest but MD5' // old gateways: 501
  | 'refuses unsigned bodies' // SwiftStack, proxies
  | 'denies unsigned bodies' // the same as 403
  | `answers a condition with ${'304' | '400' | '403' | '404' | '405' | '409' | '412' | '501'}`
  | 'lists the folder itself' // its marker, whatever the rest of the prefix is
  | 'denies what is missing' // Amazon without s3:ListBucket
  | 'denies puts'
  | 'ignores conditions' // Garage 1, Ceph before Squid
  | 'has no ListObjectsV2' // 501
  | 'does not find ListObjectsV2' // 404
  | 'answers as ListObjects' // ignores list-type=2
  | 'has no NextMarker' // ListObjects without a delimiter, as Amazon
  | 'lists folders only' // S3 Express: the prefix must end with /
  | 'names another bucket' // Ceph RGW with tenants
  | 'names no bucket and no prefix'
  | 'escapes keys' // with EncodingType=url, which nobody asked for
  | 'repeats the last key' // begins a page with the key that ended the last one
  | 'lists backwards'
  | 'lists two keys a page'
  | 'tells no lengths' // chunked bodies, also of HEAD
  | 'refuses HEAD'
  | 'says what it does not delete' // 404
  | 'answers deletions with 200'
  | 'has plain ETags' // without quotes
  | 'needs a region' // Garage
  | 'needs a region and says it in words'
  | 'fails the end of an upload with 200';

export interface QuirkyS3 extends AsyncDisposable {
  readonly endpoint: string;
  readonly requests: readonly {
    method: string;
    url: string;
    headers: IncomingMessage['headers'];
  }[];
  readonly objects: Map<string, StoredObject>;
  /** Limits the total size of objects for later puts. */
  limit(bytesMax: number, answer?: FullAnswer): void;
  location(prefix: string, parameters?: Record<string, string>): string;
}
export interface StoredObject {
  readonly data: Buffer;
  readonly modified: Date;
  readonly etag: string;
}

/** The answer of a full service. */
export interface FullAnswer {
  readonly status: number;
  readonly code: string;
  readonly message: string;
}

export const QUIRKY_REGION = 'garage';
export const QUIRKY_ENVIRONMENT = {
  AWS_ACCESS_KEY_ID: 'AKIDEXAMPLE',
  AWS_SECRET_ACCESS_KEY: 'secret',
  AWS_EC2_METADATA_DISABLED: 'true',
};

/** An S3 service in memory, on loopback. The service checks signed values, but no signatures. */
export async function startQuirkyS3(
  quirks: readonly Quirk[] = [],
  bucket = 'backups',
): Promise<QuirkyS3> {
  const service = new Service(new Set(quirks), bucket);
  const server = createServer((request, response) => {
    void Array.fromAsync(request as AsyncIterable<Buffer>)
      .then((pieces) => {
        service.serve(request, response, Buffer.concat(pieces));
      })
      .catch(() => response.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    endpoint,
    requests: service.requests,
    objects: service.objects,
    limit: (bytesMax, answer) => {
      service.limit(bytesMax, answer);
    },
    location: (prefix, parameters = {}) =>
      `s3://${bucket}/${prefix}/?${new URLSearchParams({ endpoint, ...parameters }).toString()}`,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

const escaped = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
const element = (name: string, text: string | undefined): string =>
  text === undefined ? '' : `<${name}>${escaped(text)}</${name}>`;

class Refusal extends Error {
  readonly status: number;
  readonly code: string;
  readonly extra: string;

  constructor(status: number, code: string, message: string, extra = '') {
    super(message);
    this.status = status;
    this.code = code;
    this.extra = extra;
  }
}

class Service {
  readonly requests: { method: string; url: string; headers: IncomingMessage['headers'] }[] = [];
  readonly objects = new Map<string, StoredObject>();
  readonly #uploads = new Map<string, Map<number, Buffer>>();
  readonly #quirks: ReadonlySet<Quirk>;
  readonly #bucket: string;
  #endsFailed = 0;
  #bytesMax = Infinity;
  #full: FullAnswer = { status: 403, code: 'QuotaExceeded', message: '' };

  constructor(quirks: ReadonlySet<Quirk>, bucket: string) {
    this.#quirks = quirks;
    this.#bucket = bucket;
  }

  #has(quirk: Quirk): boolean {
    return this.#quirks.has(quirk);
  }

  limit(bytesMax: number, answer = this.#full): void {
    this.#bytesMax = bytesMax;
    this.#full = answer;
  }

  serve(request: IncomingMessage, response: ServerResponse, body: Buffer): void {
    const { method = '', url = '', headers } = request;
    this.requests.push({ method, url, headers });
    const { pathname, searchParams: asked } = new URL(url, 'http://s3');
    const [, bucket = '', ...rest] = pathname.split('/').map(decodeURIComponent);
    response.setHeader('x-amz-request-id', String(this.requests.length));
    try {
      this.#authorize(method, headers, asked);
      if (bucket !== this.#bucket) throw new Refusal(404, 'NoSuchBucket', 'no such bucket');
      const key = rest.join('/');
      if (key === '') this.#list(asked, response);
      else if (asked.has('uploads')) this.#begin(headers, response);
      else if (asked.has('uploadId')) this.#part(method, key, asked, headers, body, response);
      else if (asked.has('retention')) this.#lock(headers, body, response);
      else this.#object(method, key, headers, body, response);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      const { status, code, message, extra } = error;
      const text = `<?xml version="1.0"?><Error>${element('Code', code)}${element('Message', message)}${extra}</Error>`;
      response.writeHead(status, { 'content-type': 'application/xml' });
      response.end(method === 'HEAD' || status === 304 ? undefined : text);
    }
  }

  #authorize(method: string, headers: IncomingMessage['headers'], asked: URLSearchParams): void {
    const denied = new Refusal(403, 'AccessDenied', 'Access Denied');
    if (asked.has('X-Amz-Signature')) {
      const [, y, mo, d, h, mi, s] =
        /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(asked.get('X-Amz-Date') ?? '') ?? [];
      const from = Date.UTC(Number(y), Number(mo) - 1, Number(d), Number(h), Number(mi), Number(s));
      const isOver = Date.now() > from + Number(asked.get('X-Amz-Expires')) * 1000;
      if (method !== 'GET' || isOver) throw denied;
      return;
    }
    const region = /Credential=[^/]+\/\d+\/([^/]+)\//.exec(headers.authorization ?? '')?.[1];
    if (region === undefined) throw denied;
    if (region === QUIRKY_REGION) return;
    const code = 'AuthorizationHeaderMalformed';
    if (this.#has('needs a region')) {
      throw new Refusal(400, code, 'wrong region', element('Region', QUIRKY_REGION));
    }
    if (this.#has('needs a region and says it in words')) {
      const words = `unexpected scope: 20260101/${region}/s3/aws4_request, expected: ${QUIRKY_REGION}`;
      throw new Refusal(400, code, words);
    }
  }

  #list(asked: URLSearchParams, response: ServerResponse): void {
    const isV2 = asked.get('list-type') === '2';
    if (isV2 && this.#has('has no ListObjectsV2')) throw new Refusal(501, 'NotImplemented', NO);
    if (isV2 && this.#has('does not find ListObjectsV2')) throw new Refusal(404, '', '');
    const prefix = asked.get('prefix') ?? '';
    if (this.#has('lists folders only') && prefix !== '' && !prefix.endsWith('/')) {
      throw new Refusal(400, 'InvalidArgument', 'prefix must end with a delimiter');
    }
    const inV1 = !isV2 || this.#has('answers as ListObjects');
    const after = (inV1 ? asked.get('marker') : asked.get('continuation-token')) ?? undefined;
    const names = namesBelow([...this.objects.keys()], prefix, asked.get('delimiter') ?? undefined);
    if (this.#has('lists backwards')) names.reverse();
    const max = this.#has('lists two keys a page') ? 2 : 1000;
    let at = 0;
    if (after !== undefined) {
      at = inV1 ? names.findIndex((name) => name > after) : Number(after);
      if (at < 0) at = names.length;
    }
    const isMore = at + max < names.length;
    const page = names.slice(at, at + max);
    if (this.#has('repeats the last key') && at > 0) page.unshift(names[at - 1] ?? '');
    const escapes = this.#has('escapes keys');
    const told = (key: string): string =>
      escapes ? encodeURIComponent(key).replaceAll('%20', '+') : key;
    if (this.#has('lists the folder itself') && at === 0 && prefix.includes('/')) {
      page.unshift(prefix.slice(0, prefix.lastIndexOf('/') + 1));
    }
    const isSilent = this.#has('names no bucket and no prefix');
    const next = inV1
      ? { NextMarker: this.#has('has no NextMarker') ? undefined : page.at(-1) }
      : { NextContinuationToken: String(at + max) };
    const text = [
      '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
      element('Name', isSilent ? undefined : this.#has('names another bucket') ? 'other' : this.#bucket), // prettier-ignore
      element('Prefix', isSilent ? undefined : told(prefix)),
      element('EncodingType', escapes ? 'url' : undefined),
      element('IsTruncated', String(isMore)),
      ...(isMore ? Object.entries(next).map(([name, value]) => element(name, value)) : []),
      ...page.map((name) => this.#listed(name, told)),
      '</ListBucketResult>',
    ].join('');
    response.writeHead(200, { 'content-type': 'application/xml' }).end(text);
  }

  #listed(name: string, told: (key: string) => string): string {
    const found = this.objects.get(name);
    if (!found && this.#has('lists the folder itself')) {
      return `<Contents>${element('Key', name)}<LastModified>2026-01-02T03:04:05.000Z</LastModified><Size>0</Size></Contents>`;
    }
    if (!found) return `<CommonPrefixes>${element('Prefix', told(name))}</CommonPrefixes>`;
    const { data, modified, etag } = found;
    return `<Contents>${element('Key', told(name))}${element('LastModified', modified.toISOString())}${element('ETag', etag)}${element('Size', String(data.length))}</Contents>`;
  }

  /** Throws if the service would refuse the body of this put. */
  #assertPut(headers: IncomingMessage['headers'], body: Buffer): void {
    if (this.#has('denies puts')) throw new Refusal(403, 'AccessDenied', 'Access Denied');
    const stored = this.objects.values().reduce((sum, { data }) => sum + data.length, 0);
    if (stored + body.length > this.#bytesMax) {
      const { status, code, message } = this.#full;
      throw new Refusal(status, code, message);
    }
    const checksum = Object.keys(headers).find((name) => /^x-amz-(checksum|sdk-check)/.test(name));
    if (checksum !== undefined && this.#has('refuses checksum headers')) {
      const text = `Unsupported header '${checksum}' received for this API call.`;
      throw new Refusal(400, 'InvalidArgument', text);
    }
    if (checksum !== undefined && this.#has('checks no digest but MD5')) {
      throw new Refusal(501, 'NotImplemented', NO);
    }
    const digest = headers['x-amz-content-sha256'];
    if (digest === 'UNSIGNED-PAYLOAD') {
      if (this.#has('refuses unsigned bodies')) {
        throw new Refusal(400, 'XAmzContentSHA256Mismatch', 'UNSIGNED-PAYLOAD is not supported');
      }
      if (this.#has('denies unsigned bodies')) {
        throw new Refusal(403, 'SignatureDoesNotMatch', 'The signature does not match');
      }
    } else if (digest !== createHash('sha256').update(body).digest('hex')) {
      throw new Refusal(400, 'XAmzContentSHA256Mismatch', 'the body has another digest');
    }
    const md5 = headers['content-md5'];
    if (md5 !== undefined && md5 !== createHash('md5').update(body).digest('base64')) {
      throw new Refusal(400, 'BadDigest', 'the body has another digest');
    }
  }

  #assertCondition(key: string, headers: IncomingMessage['headers']): void {
    if (headers['if-none-match'] === undefined || this.#has('ignores conditions')) return;
    const isThere = this.objects.has(key);
    if (this.#has('answers a condition with 304') && isThere) throw new Refusal(304, '', '');
    for (const [status, code] of CONDITION_REFUSALS) {
      if (this.#has(`answers a condition with ${status}`)) {
        throw new Refusal(Number(status), code, status === '501' ? NO : `${code} said`);
      }
    }
    if (isThere) throw new Refusal(412, 'PreconditionFailed', 'it is there');
  }

  #lock(headers: IncomingMessage['headers'], body: Buffer, response: ServerResponse): void {
    this.#assertPut(headers, body);
    if (headers['content-md5'] === undefined && headers['x-amz-checksum-crc32'] === undefined) {
      throw new Refusal(400, 'InvalidRequest', 'Missing required header: Content-MD5');
    }
    response.writeHead(200).end();
  }

  #object(
    method: string,
    key: string,
    headers: IncomingMessage['headers'],
    body: Buffer,
    response: ServerResponse,
  ): void {
    if (method === 'PUT') {
      this.#assertPut(headers, body);
      this.#assertCondition(key, headers);
      this.#store(key, body, response);
      return;
    }
    const found = this.objects.get(key);
    if (method === 'DELETE') {
      if (!found && this.#has('says what it does not delete')) throw noSuchKey();
      this.objects.delete(key);
      response.writeHead(this.#has('answers deletions with 200') ? 200 : 204).end();
      return;
    }
    if (method === 'HEAD' && this.#has('refuses HEAD')) throw new Refusal(403, '', '');
    if (!found && this.#has('denies what is missing')) {
      throw new Refusal(403, 'AccessDenied', 'Access Denied');
    }
    if (!found) throw noSuchKey();
    if (headers['x-amz-checksum-mode'] !== undefined && this.#has('refuses the checksum mode')) {
      const text = "Unsupported header 'x-amz-checksum-mode' received for this API call.";
      throw new Refusal(400, 'InvalidArgument', text);
    }
    this.#answer(method, found, headers.range, response);
  }

  #answer(
    method: string,
    { data, modified, etag }: StoredObject,
    range: string | undefined,
    response: ServerResponse,
  ): void {
    const total = data.length;
    const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(range ?? '') ?? [];
    const start = Number(from ?? 0);
    const end = Math.min(to === undefined || to === '' ? total - 1 : Number(to), total - 1);
    if (from !== undefined && start >= total) throw new Refusal(416, 'InvalidRange', 'too far');
    const part = from === undefined ? data : data.subarray(start, end + 1);
    response.writeHead(from === undefined ? 200 : 206, {
      etag,
      'last-modified': modified.toUTCString(),
      ...(from !== undefined && { 'content-range': `bytes ${start}-${end}/${total}` }),
      ...(!this.#has('tells no lengths') && { 'content-length': String(part.length) }),
    });
    response.end(method === 'HEAD' ? undefined : part);
  }

  #store(key: string, data: Buffer, response: ServerResponse, parts?: number): void {
    const md5 = createHash('md5').update(data).digest('hex');
    const plain = parts === undefined ? md5 : `${md5}-${parts}`;
    const etag = this.#has('has plain ETags') ? plain : `"${plain}"`;
    this.objects.set(key, { data, modified: new Date(), etag });
    if (parts === undefined) {
      response.writeHead(200, { etag, 'content-length': '0' }).end();
      return;
    }
    const text = `<?xml version="1.0"?><CompleteMultipartUploadResult>${element('ETag', etag)}</CompleteMultipartUploadResult>`;
    response.writeHead(200, { 'content-type': 'application/xml' }).end(text);
  }

  #begin(headers: IncomingMessage['headers'], response: ServerResponse): void {
    if (headers['x-amz-checksum-algorithm'] !== undefined) {
      if (this.#has('refuses checksum headers')) {
        const text = "Unsupported header 'x-amz-checksum-algorithm' received for this API call.";
        throw new Refusal(400, 'InvalidArgument', text);
      }
    }
    const id = `upload-${this.#uploads.size}`;
    this.#uploads.set(id, new Map());
    const text = `<?xml version="1.0"?><InitiateMultipartUploadResult>${element('UploadId', id)}</InitiateMultipartUploadResult>`;
    response.writeHead(200, { 'content-type': 'application/xml' }).end(text);
  }

  #part(
    method: string,
    key: string,
    asked: URLSearchParams,
    headers: IncomingMessage['headers'],
    body: Buffer,
    response: ServerResponse,
  ): void {
    const id = asked.get('uploadId') ?? '';
    const upload = this.#uploads.get(id);
    if (!upload) throw new Refusal(404, 'NoSuchUpload', 'no such upload');
    if (method === 'PUT') {
      this.#assertPut(headers, body);
      upload.set(Number(asked.get('partNumber')), body);
      const etag = `"${createHash('md5').update(body).digest('hex')}"`;
      response.writeHead(200, { etag, 'content-length': '0' }).end();
      return;
    }
    if (method === 'POST') {
      if (this.#has('fails the end of an upload with 200') && this.#endsFailed++ % 2 === 0) {
        const text = '<?xml version="1.0"?><Error><Code>InternalError</Code></Error>';
        response.writeHead(200, { 'content-type': 'application/xml' }).end(text);
        return;
      }
      this.#assertCondition(key, headers);
      const parts = [...upload].sort(([a], [b]) => a - b).map(([, bytes]) => bytes);
      this.#store(key, Buffer.concat(parts), response, parts.length);
    } else {
      response.writeHead(204).end();
    }
    this.#uploads.delete(id);
  }
}

const NO = 'A header you provided implies functionality that is not implemented.';
const CONDITION_REFUSALS = [
  ['400', 'InvalidRequest'],
  ['403', 'AccessDenied'],
  ['404', 'NoSuchKey'],
  ['405', 'MethodNotAllowed'],
  ['409', 'ConditionalRequestConflict'],
  ['412', 'PreconditionFailed'],
  ['501', 'NotImplemented'],
] as const;

const noSuchKey = (): Refusal => new Refusal(404, 'NoSuchKey', 'no such key');

/** Keys below a prefix in order, with folders in place of the keys behind a delimiter. */
function namesBelow(keys: string[], prefix: string, delimiter: string | undefined): string[] {
  const names = keys
    .filter((key) => key.startsWith(prefix))
    .map((key) => {
      const at = delimiter === undefined ? -1 : key.indexOf(delimiter, prefix.length);
      return at < 0 ? key : key.slice(0, at + 1);
    });
  return [...new Set(names)].sort();
}
