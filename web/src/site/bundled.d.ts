// How the bundler provides the worker: inside the page's script, so that the page's content security policy applies to
// the worker too.
declare module '*?worker&inline' {
  const StartWorker: new () => Worker;
  export default StartWorker;
}
