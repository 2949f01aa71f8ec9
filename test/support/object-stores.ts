import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { PEERS, tempDirectory } from './kopia.ts';

/** A real object store on loopback, for one test file. */
export interface ObjectStore extends AsyncDisposable {
  readonly name: string;
  /** `http://127.0.0.1:…` */
  readonly endpoint: string;
  /** A location in the bucket. Each prefix is a separate store. */
  location(prefix: string, parameters?: Record<string, string>): string;
  /** Kopia's parameters for the prefix; undefined if Kopia cannot reach it. */
  kopia: ((prefix: string) => string[]) | undefined;
  /** Credentials, for `openStorage` and for processes. */
  readonly environment: NodeJS.ProcessEnv;
}

export const BUCKET = 'backups';
const ACCESS = 'peersaccess';
const SECRET = 'peerssecret';
/** The emulator's public credentials. */
const AZURITE_ACCOUNT = 'devstoreaccount1';
const AZURITE_KEY =
  'Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==';
const READY_MS = 30_000;

export const STORE_KINDS = ['minio', 'versitygw', 'azurite', 'fake-gcs-server'] as const;
export type StoreKind = (typeof STORE_KINDS)[number];

const AZURITE = join(PEERS, 'azurite', 'node_modules', 'azurite', 'dist', 'src', 'blob', 'main.js');
const binaryOf = (kind: StoreKind): string =>
  kind === 'azurite' ? AZURITE : join(PEERS, 'bin', kind);

export function hasStore(kind: StoreKind): boolean {
  const isThere = fs.existsSync(binaryOf(kind));
  if (!isThere && process.env.REQUIRE_PEERS === '1') throw new Error(`no ${kind} in ${PEERS}`);
  return isThere;
}

export async function startStore(kind: StoreKind): Promise<ObjectStore> {
  const home = tempDirectory(kind);
  const port = await freePort();
  const endpoint = `http://127.0.0.1:${port}`;
  const data = join(home, 'data');
  fs.mkdirSync(kind === 'azurite' ? data : join(data, BUCKET), { recursive: true });
  const process = launch(kind, { home, data, port });
  const stop = async (): Promise<void> => {
    const ended = new Promise((resolve) => process.once('exit', resolve));
    if (process.exitCode === null && process.kill('SIGKILL')) await ended;
    fs.rmSync(home, { recursive: true, force: true });
  };
  try {
    await waitUntilReady(process, endpoint, join(home, 'log'));
    if (kind === 'azurite') await makeAzureContainer(endpoint);
  } catch (error) {
    await stop();
    throw error;
  }
  return {
    ...addressesOf(kind, endpoint, home),
    name: kind,
    endpoint,
    [Symbol.asyncDispose]: stop,
  };
}

function launch(
  kind: StoreKind,
  { home, data, port }: { home: string; data: string; port: number },
): ChildProcess {
  const log = fs.openSync(join(home, 'log'), 'a');
  const address = `127.0.0.1:${port}`;
  const sidecar = join(home, 'sidecar');
  fs.mkdirSync(sidecar);
  const commands: Record<StoreKind, { parameters: string[]; env?: NodeJS.ProcessEnv }> = {
    minio: {
      parameters: ['server', '--address', address, '--quiet', data],
      env: {
        MINIO_ROOT_USER: ACCESS,
        MINIO_ROOT_PASSWORD: SECRET,
        MINIO_BROWSER: 'off',
        MINIO_UPDATE: 'off',
      },
    },
    versitygw: {
      parameters: [
        ...['--access', ACCESS, '--secret', SECRET, '--port', address, '--health', '/health'],
        ...['posix', '--sidecar', sidecar, data],
      ],
    },
    azurite: {
      parameters: [
        ...[AZURITE, '--blobHost', '127.0.0.1', '--blobPort', String(port)],
        ...['--location', data, '--silent', '--skipApiVersionCheck', '--disableTelemetry'],
      ],
    },
    'fake-gcs-server': {
      parameters: [
        ...[
          '-scheme',
          'http',
          '-host',
          '127.0.0.1',
          '-port',
          String(port),
          '-public-host',
          address,
        ],
        ...['-backend', 'filesystem', '-filesystem-root', data],
      ],
    },
  };
  const { parameters, env } = commands[kind];
  const command = kind === 'azurite' ? process.execPath : binaryOf(kind);
  return spawn(command, parameters, {
    env: { ...process.env, ...env },
    stdio: ['ignore', log, log],
  });
}

function addressesOf(
  kind: StoreKind,
  endpoint: string,
  home: string,
): Pick<ObjectStore, 'location' | 'kopia' | 'environment'> {
  const query = (parameters: Record<string, string>): string =>
    new URLSearchParams(parameters).toString();
  switch (kind) {
    case 'minio':
    case 'versitygw':
      return {
        location: (prefix, parameters = {}) =>
          `s3://${BUCKET}/${prefix}/?${query({ endpoint, region: 'us-east-1', ...parameters })}`,
        kopia: (prefix) => [
          ...['s3', '--bucket', BUCKET, '--prefix', `${prefix}/`, '--disable-tls'],
          ...['--endpoint', endpoint.slice('http://'.length), '--region', 'us-east-1'],
          ...['--access-key', ACCESS, '--secret-access-key', SECRET],
        ],
        environment: {
          HOME: home,
          PATH: process.env.PATH,
          AWS_ACCESS_KEY_ID: ACCESS,
          AWS_SECRET_ACCESS_KEY: SECRET,
          AWS_EC2_METADATA_DISABLED: 'true',
        },
      };
    case 'azurite':
      return {
        location: (prefix, parameters = {}) =>
          `azblob://${BUCKET}/${prefix}/?${query({
            account: AZURITE_ACCOUNT,
            endpoint: `${endpoint}/${AZURITE_ACCOUNT}`,
            ...parameters,
          })}`,
        kopia: undefined,
        environment: { HOME: home, PATH: process.env.PATH, AZURE_STORAGE_KEY: AZURITE_KEY },
      };
    case 'fake-gcs-server':
      return {
        location: (prefix, parameters = {}) =>
          `gs://${BUCKET}/${prefix}/?${query({ endpoint, ...parameters })}`,
        kopia: undefined,
        environment: { HOME: home, PATH: process.env.PATH },
      };
  }
}

async function makeAzureContainer(endpoint: string): Promise<void> {
  const { BlobServiceClient, StorageSharedKeyCredential } = await import('@azure/storage-blob');
  const credential = new StorageSharedKeyCredential(AZURITE_ACCOUNT, AZURITE_KEY);
  const client = new BlobServiceClient(`${endpoint}/${AZURITE_ACCOUNT}`, credential);
  await client.getContainerClient(BUCKET).createIfNotExists();
}

async function waitUntilReady(server: ChildProcess, endpoint: string, log: string): Promise<void> {
  const end = performance.now() + READY_MS;
  while (performance.now() < end && server.exitCode === null) {
    // Any answer is enough, even a refusal.
    const isUp = await fetch(endpoint, { signal: AbortSignal.timeout(1000) }).then(
      () => true,
      () => false,
    );
    if (isUp) return;
    await sleep(50);
  }
  throw new Error(`an object store did not start: ${fs.readFileSync(log, 'utf8').slice(-1000)}`);
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
}
