-- Circuits of heads
-- Faithfulness on addition when only some heads keep their output. Circuits of the heads with the
-- largest effects need far fewer heads than circuits of random heads.
select heads, avg(faithfulness) as faithfulness, circuit
from head_faithfulness
where subject = $subject and operator = 'add' and circuit in ('effect', 'logit_effect', 'random')
group by heads, circuit
order by heads, circuit
