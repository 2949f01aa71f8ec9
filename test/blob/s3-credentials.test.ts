import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { blobId, type BlobStorage, openStorage } from '../../src/blob/index.ts';
import { tempDirectory } from '../support/kopia.ts';

/** A backup may take longer than the credentials last that it began with. */
const work = tempDirectory('s3-credentials');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

interface Service extends AsyncDisposable {
  readonly endpoint: string;
  /** Session tokens or access keys, in their order. */
  readonly seen: readonly string[];
  valid: string;
}

/** Takes one session token (or access key without one), and refuses all others. */
async function startService(valid: string, code: string, status = 400): Promise<Service> {
  const seen: string[] = [];
  const handle = (request: IncomingMessage, response: ServerResponse): void => {
    const key = /Credential=([^/]+)\//.exec(request.headers.authorization ?? '')?.[1];
    const token = request.headers['x-amz-security-token'] ?? key ?? '';
    seen.push(String(token));
    request.resume().once('end', () => {
      if (token === service.valid) {
        const headers = { etag: '"0"', 'last-modified': 'Fri, 02 Jan 2026 03:04:05 GMT' };
        response.writeHead(200, { ...headers, 'content-length': '0' }).end();
      } else {
        const body = `<?xml version="1.0"?><Error><Code>${code}</Code><Message>${code} said</Message></Error>`;
        response.writeHead(status, { 'content-type': 'application/xml' });
        response.end(request.method === 'HEAD' ? undefined : body);
      }
    });
  };
  const server = createServer(handle);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const service = {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    seen,
    valid,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  return service;
}

let count = 0;
const newFile = (): string => join(work, `credentials-${count++}`);
const grant = (file: string, token: string, key = 'AKIDFILE'): void => {
  const session = token === '' ? '' : `aws_session_token = ${token}\n`;
  fs.writeFileSync(
    file,
    `[default]\naws_access_key_id = ${key}\naws_secret_access_key = secret\n${session}`,
  );
};
const open = (
  { endpoint }: Service,
  file: string | undefined,
  environment: NodeJS.ProcessEnv = {},
): Promise<BlobStorage> => {
  const parameters = new URLSearchParams({ endpoint, ...(file && { credentialsFile: file }) });
  return openStorage(`s3://bucket/?${parameters.toString()}`, { environment });
};
const put = (storage: BlobStorage, name: string): Promise<void> =>
  storage.putBlob(blobId(name), [Buffer.of(1)]);
const ended = { code: 'STORAGE_CREDENTIALS', retry: 'never' };

describe.each([
  'ExpiredToken',
  'ExpiredTokenException',
  'TokenRefreshRequired',
  'InvalidToken',
  'InvalidTokenId',
])('%s', (code) => {
  it('makes the credentials file be read again, and all requests go on with the new token', async () => {
    await using service = await startService('first', code);
    const file = newFile();
    grant(file, 'first');
    await using storage = await open(service, file);
    await put(storage, 'p1');
    service.valid = 'second';
    // The file has no new token yet. This is an error, without endless retries.
    await expect(put(storage, 'p2')).rejects.toMatchObject(ended);
    await expect(put(storage, 'p2')).rejects.toThrow('its source had no newer one');
    expect(service.seen).toEqual(['first', 'first', 'first']);
    grant(file, 'second');
    await Promise.all(['p3', 'p4', 'p5'].map((name) => put(storage, name)));
    await put(storage, 'p6');
    expect(service.seen.at(-1)).toBe('second');
    expect(service.seen.filter((token) => token === 'second')).toHaveLength(4);
  });
});

it('a new token that is refused, too, is tried once', async () => {
  await using service = await startService('none', 'ExpiredToken');
  const file = newFile();
  grant(file, 'first');
  await using storage = await open(service, file);
  const first = put(storage, 'p1');
  await expect(first).rejects.toMatchObject(ended);
  grant(file, 'second');
  await expect(put(storage, 'p1')).rejects.toMatchObject(ended);
  expect(service.seen).toEqual(['first', 'first', 'second']);
});

it('an answer to HEAD does not say why, and the file is read again', async () => {
  await using service = await startService('first', 'ExpiredToken');
  const file = newFile();
  grant(file, 'first');
  await using storage = await open(service, file);
  await put(storage, 'p1');
  service.valid = 'second';
  grant(file, 'second');
  await expect(storage.getMetadata(blobId('p1'))).resolves.toMatchObject({ lengthBytes: 0 });
  expect(service.seen).toEqual(['first', 'first', 'second']);
});

it('an access key that was replaced is read again, too', async () => {
  await using service = await startService('AKIDOLD', 'InvalidAccessKeyId', 403);
  const file = newFile();
  grant(file, '', 'AKIDOLD');
  await using storage = await open(service, file);
  await put(storage, 'p1');
  service.valid = 'AKIDNEW';
  grant(file, '', 'AKIDNEW');
  await put(storage, 'p2');
  expect(service.seen).toEqual(['AKIDOLD', 'AKIDOLD', 'AKIDNEW']);
});

it('a file that is just being written leaves the error of the service', async () => {
  await using service = await startService('first', 'ExpiredToken');
  const file = newFile();
  grant(file, 'first');
  await using storage = await open(service, file);
  await put(storage, 'p1');
  service.valid = 'second';
  fs.writeFileSync(file, '[default]\naws_access');
  await expect(put(storage, 'p2')).rejects.toMatchObject(ended);
  grant(file, 'second');
  await put(storage, 'p3');
});

it('a token of the environment cannot be read again', async () => {
  await using service = await startService('second', 'ExpiredToken');
  await using storage = await open(service, undefined, {
    AWS_ACCESS_KEY_ID: 'AKID',
    AWS_SECRET_ACCESS_KEY: 'secret',
    AWS_SESSION_TOKEN: 'first',
  });
  await expect(put(storage, 'p1')).rejects.toMatchObject(ended);
  expect(service.seen).toEqual(['first']);
});

it('what is simply not allowed is asked for once, also with other credentials in the file', async () => {
  await using service = await startService('none', 'AccessDenied', 403);
  const file = newFile();
  grant(file, 'first');
  await using storage = await open(service, file);
  await expect(put(storage, 'p1')).rejects.toMatchObject({ code: 'STORAGE_DENIED' });
  grant(file, 'second');
  await expect(put(storage, 'p1')).rejects.toMatchObject({ code: 'STORAGE_DENIED' });
  expect(service.seen).toEqual(['first', 'first']);
});

it('keys of a web identity are asked for again before they end, with the token that is there then', async () => {
  const tokenFile = join(work, 'web-identity');
  fs.writeFileSync(tokenFile, 'projected-1');
  const exchanged: string[] = [];
  const signed: string[] = [];
  const server = createServer((request, response) => {
    void Array.fromAsync(request as AsyncIterable<Buffer>).then((pieces) => {
      const body = Buffer.concat(pieces).toString();
      if (!body.includes('AssumeRoleWithWebIdentity')) {
        signed.push(String(request.headers['x-amz-security-token']));
        response.setHeader('etag', '"0"').setHeader('last-modified', new Date(0).toUTCString());
        const list =
          '<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated></ListBucketResult>';
        response.end(request.url?.includes('list-type') === true ? list : '');
        return;
      }
      exchanged.push(new URLSearchParams(body).get('WebIdentityToken') ?? '');
      fs.writeFileSync(tokenFile, `projected-${exchanged.length + 1}`);
      response.setHeader('content-type', 'text/xml');
      response.end(exchangeAnswer(`session-${exchanged.length}`, Date.now() + 60_000));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const bin = new URL('../../bin/longshore', import.meta.url).pathname;
    // The library reads the environment of its process, so this is one of its own.
    const child = spawn(bin, ['store', 'check', `s3://bucket/?endpoint=${endpoint}`], {
      env: {
        PATH: process.env.PATH,
        HOME: work,
        AWS_REGION: 'us-east-1',
        AWS_ROLE_ARN: 'arn:aws:iam::1:role/backup',
        AWS_WEB_IDENTITY_TOKEN_FILE: tokenFile,
        AWS_ENDPOINT_URL_STS: endpoint,
        AWS_EC2_METADATA_DISABLED: 'true',
      },
      stdio: 'ignore',
    });
    await new Promise((resolve) => child.once('close', resolve));
    expect(exchanged.slice(0, 2)).toEqual(['projected-1', 'projected-2']);
    expect(signed[0]).toBe('session-1');
    expect(signed).toContain('session-2');
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});

const exchangeAnswer = (session: string, untilMs: number): string =>
  `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIA</AccessKeyId>
<SecretAccessKey>secret</SecretAccessKey><SessionToken>${session}</SessionToken>
<Expiration>${new Date(untilMs).toISOString()}</Expiration></Credentials>
<AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/backup/x</Arn><AssumedRoleId>A:x</AssumedRoleId></AssumedRoleUser>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`;
