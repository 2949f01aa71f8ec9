/**
 * Linux error numbers without a name in libuv (1.52). For these, Node has "Unknown system error
 * -122" or "UNKNOWN" as code and message. Names are from `asm-generic/errno-base.h` and `errno.h`,
 * which all machines of Node use. Texts are glibc's.
 */
const UNNAMED: ReadonlyMap<number, readonly [name: string, text: string]> = new Map([
  [10, ['ECHILD', 'no child processes']],
  [15, ['ENOTBLK', 'block device required']],
  [33, ['EDOM', 'numerical argument out of domain']],
  [35, ['EDEADLK', 'resource deadlock avoided']],
  [37, ['ENOLCK', 'no locks available']],
  [42, ['ENOMSG', 'no message of desired type']],
  [43, ['EIDRM', 'identifier removed']],
  [44, ['ECHRNG', 'channel number out of range']],
  [45, ['EL2NSYNC', 'level 2 not synchronized']],
  [46, ['EL3HLT', 'level 3 halted']],
  [47, ['EL3RST', 'level 3 reset']],
  [48, ['ELNRNG', 'link number out of range']],
  [50, ['ENOCSI', 'no CSI structure available']],
  [51, ['EL2HLT', 'level 2 halted']],
  [52, ['EBADE', 'invalid exchange']],
  [53, ['EBADR', 'invalid request descriptor']],
  [54, ['EXFULL', 'exchange full']],
  [55, ['ENOANO', 'no anode']],
  [56, ['EBADRQC', 'invalid request code']],
  [57, ['EBADSLT', 'invalid slot']],
  [59, ['EBFONT', 'bad font file format']],
  [60, ['ENOSTR', 'device not a stream']],
  [62, ['ETIME', 'timer expired']],
  [63, ['ENOSR', 'out of streams resources']],
  [65, ['ENOPKG', 'package not installed']],
  [66, ['EREMOTE', 'object is remote']],
  [67, ['ENOLINK', 'link has been severed']],
  [68, ['EADV', 'advertise error']],
  [69, ['ESRMNT', 'srmount error']],
  [70, ['ECOMM', 'communication error on send']],
  [72, ['EMULTIHOP', 'multihop attempted']],
  [73, ['EDOTDOT', 'RFS specific error']],
  [74, ['EBADMSG', 'bad message']],
  [76, ['ENOTUNIQ', 'name not unique on network']],
  [77, ['EBADFD', 'file descriptor in bad state']],
  [78, ['EREMCHG', 'remote address changed']],
  [79, ['ELIBACC', 'can not access a needed shared library']],
  [80, ['ELIBBAD', 'accessing a corrupted shared library']],
  [81, ['ELIBSCN', '.lib section in a.out corrupted']],
  [82, ['ELIBMAX', 'attempting to link in too many shared libraries']],
  [83, ['ELIBEXEC', 'cannot exec a shared library directly']],
  [85, ['ERESTART', 'interrupted system call should be restarted']],
  [86, ['ESTRPIPE', 'streams pipe error']],
  [87, ['EUSERS', 'too many users']],
  [96, ['EPFNOSUPPORT', 'protocol family not supported']],
  [102, ['ENETRESET', 'network dropped connection on reset']],
  [109, ['ETOOMANYREFS', 'too many references: cannot splice']],
  [115, ['EINPROGRESS', 'operation now in progress']],
  [116, ['ESTALE', 'stale file handle']],
  [117, ['EUCLEAN', 'structure needs cleaning']],
  [118, ['ENOTNAM', 'not a XENIX named type file']],
  [119, ['ENAVAIL', 'no XENIX semaphores available']],
  [120, ['EISNAM', 'is a named type file']],
  [122, ['EDQUOT', 'disk quota exceeded']],
  [123, ['ENOMEDIUM', 'no medium found']],
  [124, ['EMEDIUMTYPE', 'wrong medium type']],
  [126, ['ENOKEY', 'required key not available']],
  [127, ['EKEYEXPIRED', 'key has expired']],
  [128, ['EKEYREVOKED', 'key has been revoked']],
  [129, ['EKEYREJECTED', 'key was rejected by service']],
  [130, ['EOWNERDEAD', 'owner died']],
  [131, ['ENOTRECOVERABLE', 'state not recoverable']],
  [132, ['ERFKILL', 'operation not possible due to RF-kill']],
  [133, ['EHWPOISON', 'memory page has hardware error']],
]);

const UNKNOWN = 'Unknown system error -';
const CODE = new RegExp(`^${UNKNOWN}(\\d+)$`);
/** Node writes the code and then its meaning. Both are the same if libuv knows neither. */
const TOLD = new RegExp(`${UNKNOWN}(\\d+)(: ${UNKNOWN}\\1)?(?!\\d)`, 'g');
/** A few calls, such as `writeSync`, have this code instead. Then only `errno` has the number. */
const WITHOUT_NUMBER = 'UNKNOWN';
const TOLD_WITHOUT_NUMBER = `${WITHOUT_NUMBER}: unknown error`;

/** The name of a Node error in the system's headers, such as `EDQUOT`. Known codes stay. */
export function nameOfCode(code: string, errno?: number): string {
  const number = code === WITHOUT_NUMBER ? -(errno ?? 0) : Number(CODE.exec(code)?.[1]);
  return UNNAMED.get(number)?.[0] ?? code;
}

/** The message of a Node error, with a name and a meaning if it lacks them. */
export function withErrorNames(message: string, errno?: number): string {
  const describe = (told: string, number: number): string =>
    UNNAMED.get(number)?.join(': ') ?? told;
  if (errno !== undefined && message.startsWith(TOLD_WITHOUT_NUMBER)) {
    const rest = message.slice(TOLD_WITHOUT_NUMBER.length);
    return describe(TOLD_WITHOUT_NUMBER, -errno) + rest;
  }
  if (!message.includes(UNKNOWN)) return message;
  return message.replaceAll(TOLD, (told, digits: string) => describe(told, Number(digits)));
}
