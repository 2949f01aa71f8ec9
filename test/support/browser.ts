import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const CHROMIUM = '/usr/bin/chromium';

/** True if Debian's chromium is installed. With REQUIRE_PEERS=1, it is an error if not. */
export const hasBrowser = fs.existsSync(CHROMIUM);
if (!hasBrowser && process.env.REQUIRE_PEERS === '1') throw new Error(`no ${CHROMIUM}`);

interface Reply {
  readonly id?: number;
  readonly method?: string;
  readonly params?: Record<string, unknown>;
  readonly result?: Record<string, unknown>;
  readonly error?: { readonly message: string };
}

/** Time-out of browser actions on a shared machine. */
const PATIENT_MS = 60_000;

/** A page of a headless Chromium, through the DevTools protocol. */
export class BrowserPage implements AsyncDisposable {
  /** URLs of all requests, including pages. */
  readonly asked: string[] = [];
  readonly directory: string;
  readonly #process: ChildProcess;
  readonly #socket: WebSocket;
  readonly #waiting = new Map<number, PromiseWithResolvers<Record<string, unknown>>>();
  readonly #heard: Reply[] = [];
  #session: string | undefined;
  #next = 1;

  private constructor(child: ChildProcess, socket: WebSocket, directory: string) {
    this.#process = child;
    this.#socket = socket;
    this.directory = directory;
    socket.addEventListener('message', ({ data }) => {
      this.#hear(JSON.parse(String(data)) as Reply);
    });
  }

  static async open(): Promise<BrowserPage> {
    const directory = fs.mkdtempSync(join(tmpdir(), 'longshore-browser-'));
    const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'];
    const quiet = ['--disable-background-networking', '--no-first-run', '--disable-sync'];
    const own = [
      '--remote-debugging-port=0',
      `--user-data-dir=${directory}`,
      '--force-color-profile=srgb',
    ];
    const child = spawn(CHROMIUM, [...flags, ...quiet, ...own, 'about:blank'], { stdio: 'ignore' });
    const told = join(directory, 'DevToolsActivePort');
    const deadline = performance.now() + PATIENT_MS;
    while (!fs.existsSync(told) || fs.readFileSync(told, 'utf8').split('\n').length < 2) {
      if (performance.now() > deadline) throw new Error('the browser does not start');
      await sleep(50);
    }
    const [port = '', path = ''] = fs.readFileSync(told, 'utf8').split('\n');
    const socket = new WebSocket(`ws://127.0.0.1:${port}${path}`);
    await new Promise((resolve, reject) => {
      socket.addEventListener('open', resolve);
      socket.addEventListener('error', reject);
    });
    const page = new BrowserPage(child, socket, directory);
    const { targetId } = await page.send('Target.createTarget', { url: 'about:blank' });
    const attached = await page.send('Target.attachToTarget', { targetId, flatten: true });
    page.#session = String(attached['sessionId']);
    for (const domain of ['Page', 'Network', 'DOM']) await page.send(`${domain}.enable`);
    return page;
  }

  send(method: string, params: object = {}): Promise<Record<string, unknown>> {
    const id = this.#next++;
    const waiting = Promise.withResolvers<Record<string, unknown>>();
    this.#waiting.set(id, waiting);
    const isOfBrowser = /^(Target|Browser)\./.test(method);
    const session = isOfBrowser || this.#session === undefined ? {} : { sessionId: this.#session };
    this.#socket.send(JSON.stringify({ id, method, params, ...session }));
    return waiting.promise;
  }

  #hear(reply: Reply): void {
    if (reply.id !== undefined) {
      const waiting = this.#waiting.get(reply.id);
      if (reply.error) waiting?.reject(new Error(reply.error.message));
      else waiting?.resolve(reply.result ?? {});
      return;
    }
    if (reply.method === 'Network.requestWillBeSent') {
      this.asked.push((reply.params as { request: { url: string } }).request.url);
    }
    this.#heard.push(reply);
  }

  /** Runs an action, and waits for an event of the browser. */
  async after(event: string, act: () => Promise<unknown>): Promise<Record<string, unknown>> {
    const from = this.#heard.length;
    await act();
    const deadline = performance.now() + PATIENT_MS;
    for (;;) {
      const heard = this.#heard.slice(from).find(({ method }) => method === event);
      if (heard) return heard.params ?? {};
      if (performance.now() > deadline) throw new Error(`no ${event}`);
      await sleep(10);
    }
  }

  goTo(url: string): Promise<unknown> {
    return this.after('Page.loadEventFired', () => this.send('Page.navigate', { url }));
  }

  async evaluate(expression: string): Promise<unknown> {
    const reply = await this.send('Runtime.evaluate', { expression, returnByValue: true });
    return (reply['result'] as { value?: unknown }).value;
  }

  /** Presses a key as a person does. */
  async press(key: 'Tab' | 'Enter'): Promise<void> {
    const code = key === 'Tab' ? 9 : 13;
    const text = key === 'Enter' ? { text: '\r' } : {};
    const common = { key, code: key, windowsVirtualKeyCode: code };
    await this.send('Input.dispatchKeyEvent', { type: 'keyDown', ...common, ...text });
    await this.send('Input.dispatchKeyEvent', { type: 'keyUp', ...common });
  }

  /** Presses Tab until an element with this text has the focus. */
  async tabTo(text: string): Promise<void> {
    for (let presses = 0; presses < 200; presses++) {
      await this.press('Tab');
      if ((await this.focused()) === text) return;
    }
    throw new Error(`no way to "${text}" by keyboard`);
  }

  async focused(): Promise<string> {
    const expression = `(document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent ?? '').trim().replace(/\\s+/g, ' ')`;
    return String(await this.evaluate(expression));
  }

  async screenshot(file: string): Promise<void> {
    const { data } = await this.send('Page.captureScreenshot', { format: 'png' });
    fs.writeFileSync(file, Buffer.from(String(data), 'base64'));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ended = new Promise((resolve) => this.#process.once('exit', resolve));
    await this.send('Browser.close').catch(() => undefined);
    const timer = setTimeout(() => this.#process.kill('SIGKILL'), 10_000);
    await ended;
    clearTimeout(timer);
    fs.rmSync(this.directory, { recursive: true, force: true, maxRetries: 5 });
  }
}
